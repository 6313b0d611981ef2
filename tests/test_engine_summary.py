"""What is derived from the events of a run, against counts made by hand."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from report_runs import written

from treeproof.contract.event import CaseDrawn, Checked, Event, Finished, Reduced
from treeproof.contract.failure import Cell, Evidence, Failure, Identity, Severity, Status
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.engine.summary import Run, percentile

RUNS = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()


def cell(identity: Identity, status: Status, evidence: Evidence = "measured") -> Cell:
    return Cell(identity=identity, evidence=evidence, status=status, stage="attend")


def failure(identity: Identity, kind: str, severity: Severity = "wrong") -> Failure:
    return Failure(
        identity=identity, kind=kind, evidence="measured", stage="attend", message=f"{kind}!",
        severity=severity,
    )  # fmt: skip


def drawn(case: str, rows: int, prefix: int, *tags: str, unit: str = "u") -> CaseDrawn:
    return CaseDrawn(case=case, unit=unit, tags=tags, rows=(rows,), prefixes=(prefix,), seconds=0.5)


def make_run(
    *events: Event, backends: tuple[str, ...] = ("a",), asked: tuple[str, ...] = ()
) -> Run:
    meta = RunMeta(
        started="",
        settings={"identities": list(asked)},
        seed=0,
        device="cpu",
        device_name="",
        backends=tuple(
            BackendMeta(reference=n, name=n, unavailable="no wheel" if n == "gone" else "")
            for n in backends
        ),
    )
    return written(Path(RUNS.name, str(next(NUMBERS))), meta, events)


def test_the_matrix_counts_cells_of_both_evidences() -> None:
    run = make_run(
        drawn("x", 3, 1),
        drawn("y", 4, 2),
        Checked(
            case="x",
            backend="a",
            cells=(cell("kv", "pass"), cell("kv", "fail", "declared"), cell("position", "tie")),
            margin=0.5,
        ),
        Checked(case="y", backend="a", cells=(cell("kv", "pass"),), margin=0.75),
        backends=("a", "b"),
    )
    assert run.matrix["a"]["kv"] == {"pass": 2, "fail": 1}
    assert run.matrix["a"]["position"] == {"tie": 1}
    assert run.matrix["b"]["kv"] == {}
    assert run.margins == {"a": 0.75}
    assert run.exercised == {"a": ("kv",), "b": ()}  # a tie is no judgement


def test_cases_of_the_reducer_count_in_no_figure() -> None:
    failing = (failure("output", "off"),)
    run = make_run(
        drawn("big", 30, 100, "tree:star"),
        Checked(case="big", backend="a", cells=(cell("output", "fail"),), failures=failing),
        drawn("small", 3, 0, "tree:star", unit="reduced"),
        Checked(case="small", backend="a", cells=(cell("output", "fail"),), failures=failing),
        Reduced(
            backend="a", identity="output", kind="off", original="big", reduced="small",
            evaluations=20, seconds=1.0,
        ),
    )  # fmt: skip
    assert run.matrix["a"]["output"] == {"fail": 1}
    assert (run.rows, run.prefixes, run.event_classes) == ((30,), (100,), {"tree:star": 1})
    (group,) = run.failures
    assert (group.case, group.checked.case, group.checks) == ("small", "small", 1)


def test_failures_are_grouped_by_key_worst_first_with_the_smallest_case() -> None:
    both = (failure("kv", "stray"), failure("visibility", "sibling"), failure("kv", "stray"))
    run = make_run(
        drawn("big", 30, 5),
        drawn("small", 4, 9),
        drawn("crashed", 50, 0),
        Checked(case="big", backend="a", cells=(cell("kv", "fail"),), failures=both),
        Checked(case="small", backend="a", cells=(cell("kv", "fail"),), failures=both[:1]),
        Checked(
            case="crashed",
            backend="a",
            cells=(cell("contract", "fail"),),
            failures=(failure("contract", "crash", "crash"),),
        ),
    )
    assert [(g.identity, g.kind, g.checks, g.case) for g in run.failures] == [
        ("contract", "crash", 1, "crashed"),
        ("visibility", "sibling", 1, "big"),
        ("kv", "stray", 2, "small"),
    ]


def test_the_order_of_workers_does_not_show() -> None:
    cases = [drawn(name, 3, 1) for name in "xyz"]
    checks = [Checked(case=n, backend="a", cells=(cell("kv", "pass"),)) for n in "xyz"]
    one, two = make_run(*cases, *checks), make_run(*reversed(checks), *cases)
    assert one.checks == two.checks == tuple(checks)


PASSED = Checked(case="x", backend="a", cells=(cell("kv", "pass"),))
FAILED = Checked(
    case="x", backend="a", cells=(cell("kv", "fail"),), failures=(failure("kv", "stray"),)
)
SKIPPED = Checked(case="x", backend="a", cells=(cell("kv", "not-checked"),))
FOREIGN = Checked(case="x", backend="a", cells=(cell("kv", "unsupported"),))


@pytest.mark.parametrize(
    ("events", "backends", "asked", "code"),
    [
        ((PASSED, Finished(exit_code=0, seconds=1)), ("a",), (), 0),
        ((PASSED,), ("a",), (), 3),  # cut short
        ((FAILED,), ("a",), (), 1),
        ((PASSED, Finished(exit_code=130, seconds=1)), ("a",), (), 130),
    ],
)
def test_exit_codes_of_whole_runs(
    events: tuple[Event, ...], backends: tuple[str, ...], asked: tuple[str, ...], code: int
) -> None:
    assert make_run(drawn("x", 3, 1), *events, backends=backends, asked=asked).exit_code == code


@pytest.mark.parametrize(
    ("check", "backends", "asked", "verdict"),
    [
        (PASSED, ("a",), (), 0),
        (FAILED, ("a", "gone"), (), 1),  # a violation outweighs what is missing
        (PASSED, ("a", "gone"), (), 3),
        (PASSED, ("a", "b"), (), 3),
        (SKIPPED, ("a",), (), 3),
        (FOREIGN, ("a",), (), 3),
        (PASSED, ("a",), ("kv",), 0),
        (PASSED, ("a",), ("kv", "position"), 3),
    ],
)
def test_what_the_checks_alone_decide(
    check: Checked, backends: tuple[str, ...], asked: tuple[str, ...], verdict: int
) -> None:
    run = make_run(drawn("x", 3, 1), check, backends=backends, asked=asked)
    assert run.verdict == verdict
    assert bool(run.missing) == (verdict == 3 or "gone" in backends)


def test_time_is_split_over_all_checks() -> None:
    run = make_run(
        drawn("x", 3, 1),
        drawn("y", 3, 1),
        Checked(case="x", backend="a", cells=(), seconds={"backend": 1.0, "probe": 2.0}),
        Checked(case="y", backend="a", cells=(), seconds={"backend": 0.5}),
    )
    assert run.time_split == {"generate": 1.0, "backend": 1.5, "probe": 2.0}


def test_percentiles_are_values_that_occurred() -> None:
    ten = list(range(1, 11))
    assert [percentile(ten, p) for p in (50, 90, 100)] == [5, 9, 10]
    assert (percentile([7], 50), percentile([], 90)) == (7, 0)
