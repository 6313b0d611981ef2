"""A run names the cause of what it finds, once for all failures that share it."""

from pathlib import Path

import msgspec
import pytest
from backend_scene import DEEP, FORK, Situation, case_of

from treeproof.contract.event import Checked, Diagnosed
from treeproof.contract.failure import Failure
from treeproof.engine.explain import explain_failures
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.reports.cause import cause_text, shared_causes

ROWS_AS_POSITIONS = """
from dataclasses import replace

import torch
import treeproof
from treeproof.backends.direct_mask import DirectMask


@treeproof.register("rows", consumes={consumes!r}, numerics=treeproof.Numerics(p="float32"))
class Rows(DirectMask):
    def build(self, c):
        positions = []
        for prefix, real, rows in zip(
            c.seq_lens.tolist(), c.num_nodes.tolist(), c.num_rows.tolist(), strict=True
        ):
            positions += [prefix + row for row in range(real)] + [0] * (rows - real)
        return replace(super().build(c), positions=torch.tensor(positions))
"""
CONSUMES = {
    "draft_token", "seq_lens", "qo_indptr", "out_cache_loc", "request_slots", "req_to_token",
    "custom_mask", "mask_indptr",
}  # fmt: skip
CASE = msgspec.structs.replace(
    case_of(Situation(trees=(DEEP, FORK), prefixes=(5, 9), pads=(0, 0), heads=(2, 1))),
    shape=msgspec.structs.replace(
        case_of(Situation(heads=(2, 1))).shape, rotary=10000.0
    ),
)  # fmt: skip


def run_of(tmp_path, workers):
    path = tmp_path / "rows.py"
    path.write_text(ROWS_AS_POSITIONS.replace("{consumes!r}", repr(CONSUMES)))
    settings = RunSettings(
        backends=(str(path),), workers=workers, store=None, run_dir=tmp_path / "run"
    )
    return run(settings, cases=[CASE])


@pytest.mark.parametrize("workers", [0, 1])
def test_every_failure_of_one_fault_gets_its_cause_and_the_summary_says_it_is_one(
    tmp_path, workers
):
    done = run_of(tmp_path, workers)
    kinds = {(group.identity, group.kind) for group in done.failures}
    assert {("position", "wrong-depth"), ("output", "outside-bound")} <= kinds
    assert {group.failure.cause for group in done.failures} == {"position-is-row"}
    assert all(group.diagnosed.cases_tried > 1 for group in done.failures)
    (line,) = shared_causes(done.failures)
    assert line.startswith(f"{len(done.failures)} failures, one cause: rows position-is-row: ")
    # All of it is read from the folder.
    again = Run.read(done.folder.path)
    assert [g.diagnosed for g in again.failures] == [g.diagnosed for g in done.failures]


def test_a_right_backend_is_given_no_cause(tmp_path):
    settings = RunSettings(
        backends=("direct-mask",), workers=0, store=None, run_dir=tmp_path / "run"
    )
    done = run(settings, cases=[CASE])
    assert done.failures == ()
    assert not [event for event in done.events if isinstance(event, Diagnosed)]


# --- hangs and crashes, which are not run again ------------------------------------------------------


class OneRun:
    """As much of a run as causes are found from."""

    def __init__(self, *failures):
        self.folder = None
        self.failures = tuple(
            FailureGroup(
                backend="b",
                identity=failure.identity,
                kind=failure.kind,
                checks=1,
                case="c",
                failure=failure,
                read=lambda: Checked(case="c", backend="b", cells=()),
                kept=Path("kept.json"),
            )
            for failure in failures
        )


class NoPool:
    seats = (None,)

    def diagnose(self, *arguments, **named):
        raise AssertionError("a backend that hangs or crashes is not run again")


def failure(kind, severity):
    return Failure(
        identity="contract", kind=kind, evidence="measured", stage="attend", message="",
        severity=severity,
    )  # fmt: skip


def test_a_hang_is_its_own_cause_and_a_crash_has_none():
    found = []
    explain_failures(
        OneRun(failure("hang", "hang"), failure("crash", "crash")),
        NoPool(),
        [BackendMeta(reference="b", name="b")],
        RunSettings(backends=("b",)),
        found.append,
    )
    assert [(event.kind, event.cause) for event in found] == [("hang", "hangs")]


# --- a device that breaks down ------------------------------------------------------------------------

BREAKS = """
import torch
import treeproof
from treeproof.backends.direct_mask import DirectMask


def broken(*arguments, **named):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@treeproof.register("breaks", consumes={consumes!r}, numerics=treeproof.Numerics(p="float32"))
class Breaks(DirectMask):
    def attend(self, x, *tensors):
        done = super().attend(x, *tensors)
        # From now on nothing can be asked of this device, by nobody.
        torch.Tensor.any = torch.Tensor.all = torch.Tensor.tolist = torch.equal = broken
        torch.Tensor.__bool__ = torch.Tensor.__int__ = torch.Tensor.item = broken
        return done
"""


def test_a_device_that_breaks_down_while_a_cause_is_looked_for_is_no_fault_of_ours(tmp_path):
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS.replace("{consumes!r}", repr(CONSUMES)))
    settings = RunSettings(
        backends=(str(path),), workers=1, store=None, reduce=False, run_dir=tmp_path / "run"
    )
    done = run(settings, cases=[CASE], explain=True)

    assert done.exit_code == 1, done.finished
    assert {group.kind for group in done.failures} == {"raises"}
    assert "CUDA error" in done.failures[0].failure.message
    assert not [event for event in done.events if isinstance(event, Diagnosed)]


# --- in words ----------------------------------------------------------------------------------------

CAUSAL = Diagnosed(
    backend="b",
    identity="visibility",
    kind="reads-sibling",
    case="c",
    cause="causal-mask",
    says="a row reads all rows up to its own",
    detail="in the last request only",
    candidates=("causal-mask",),
)


def test_a_cause_is_a_sentence_with_what_it_holds_for():
    assert cause_text(CAUSAL) == (
        "likely cause: causal-mask: a row reads all rows up to its own (in the last request only)"
    )
    two = msgspec.structs.replace(CAUSAL, detail="", candidates=("causal-mask", "no-mask"))
    assert cause_text(two).endswith("up to its own; or no-mask, which no case told apart")


def test_what_is_unknown_says_what_is_ruled_out_and_how_much_more():
    unknown = msgspec.structs.replace(CAUSAL, cause="unknown", says="", detail="", candidates=())
    assert cause_text(unknown) == "cause unknown"
    few = msgspec.structs.replace(unknown, ruled_out=("a", "b"))
    assert cause_text(few) == "cause unknown: ruled out a, b"
    many = msgspec.structs.replace(unknown, ruled_out=("a", "b", "c", "d", "e"))
    assert cause_text(many) == "cause unknown: ruled out a, b, c and 2 more"


def test_failures_share_a_cause_only_where_it_is_known_and_the_same():
    run_ = OneRun(failure("a", "wrong"), failure("b", "wrong"), failure("c", "wrong"))
    groups = [
        FailureGroup(**{**vars(group), "diagnosed": cause})
        for group, cause in zip(
            run_.failures, (CAUSAL, CAUSAL, msgspec.structs.replace(CAUSAL, detail="")), strict=True
        )
    ]
    assert shared_causes(groups) == [
        "2 failures, one cause: b causal-mask (in the last request only): contract a, contract b"
    ]
    unknown = msgspec.structs.replace(CAUSAL, cause="unknown")
    assert shared_causes([FailureGroup(**{**vars(g), "diagnosed": unknown}) for g in groups]) == []
