"""Failures through a whole run: reduced, kept, replayed, dropped when fixed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import CaseDrawn, Reduced
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import Reproducer, decode_reproducer
from treeproof.engine.replay import Outcome, Replay, replay, replay_as_run
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.engine.worker import InternalError

CHECKER = "engine_fake_checker"
HEAD = "import ctypes, os, time\nimport treeproof\n\n\n@treeproof.register('mine')\n"
FORKED = "max(map(len, map(case.requests[0].tree.children, range(len(case.requests[0].tree))))) > 1"
LEAK = f"return [('visibility', 'reads-sibling')] if {FORKED} else []"
MENDED = "return []"


@pytest.fixture(autouse=True)
def _fake_checker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)


def write_backend(body: str) -> str:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    Path("mine.py").write_text(f"{HEAD}def attend(case):\n{indented}")
    return "mine.py"


def big_case(seed: int) -> VerifyCase:
    rng = random.Random(seed)
    parents = (-1, *(rng.randrange(node) for node in range(1, 20)))
    rows = (0, *rng.sample(range(1, 20), 19))
    request = Request(
        tree=CandidateTree(tuple(range(20)), parents), row_of_node=rows, prefix_len=30
    )
    return VerifyCase(
        requests=(request, request),
        shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64),
        layout=KVLayout(page_size=16, num_slots=512, order="shuffled"),
        seed=seed,
    )


def check(name: str, cases: list[VerifyCase], **settings: Any) -> Run:
    given = {"workers": 2, "store": Path("kept"), "run_dir": Path(name)} | settings
    return run(RunSettings(backends=("mine.py",), **given), cases=cases, checker=CHECKER)


def kept() -> list[Path]:
    return sorted(Path("kept/failures").rglob("*.json"))


THREE_ROWS = CandidateTree((0, 1, 2), (-1, 0, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_is_reduced_to_three_rows_and_written_as_a_reproducer(workers: int) -> None:
    write_backend(LEAK)
    found = check("run", [big_case(1), big_case(2)], workers=workers)
    (group,) = found.failures
    assert group.reproducer == Path("run/failures/mine-visibility-reads-sibling.json")
    saved = decode_reproducer(group.reproducer.read_bytes())
    assert saved.case.requests[0].tree == THREE_ROWS
    assert saved.case.id == group.case == group.checked.case
    assert (saved.backend, saved.failure.identity) == ("mine.py", "visibility")
    assert saved.message == f"reads-sibling on {group.case}"
    (event,) = [e for e in found.events if isinstance(e, Reduced)]
    assert event.complete
    assert event.evaluations <= 60
    assert event.original in {c.case for c in found.cases}
    assert {c.unit for c in found.cases} == {"given"}
    assert [e.unit for e in found.events if isinstance(e, CaseDrawn)].count("reduced") == 1
    assert len(found.checks) == 2


def test_a_crash_is_reduced_across_the_workers_it_costs() -> None:
    crash = f"if {FORKED}:\n    ctypes.string_at(0)\nreturn []"
    write_backend(crash)
    tree = CandidateTree((0, 1, 2, 3), (-1, 0, 0, 1))
    request = Request(tree=tree, row_of_node=(0, 1, 2, 3), prefix_len=0)
    found = check("run", [replace(big_case(1), requests=(request,))])
    (group,) = found.failures
    assert group.key == ("mine", "contract", "crash")
    assert group.reduced is not None
    assert group.reduced.complete
    assert found.folder.read_case(group.case).requests[0].tree == THREE_ROWS
    assert len(found.losses) == 1  # those of the reducer's own trials are not counted


def test_a_hang_is_reduced_too() -> None:
    write_backend(f"while {FORKED}:\n    time.sleep(0.1)\nreturn []")
    tree = CandidateTree((0, 1, 2, 3), (-1, 0, 0, 1))
    request = Request(tree=tree, row_of_node=(0, 1, 2, 3), prefix_len=0)
    case = replace(big_case(1), requests=(request,))
    found = check("run", [case], workers=1, launch_timeout=1.0)
    (group,) = found.failures
    assert group.key == ("mine", "contract", "hang")
    assert found.folder.read_case(group.case).requests[0].tree == THREE_ROWS


def test_a_failure_that_does_not_come_again_is_kept_as_it_was_and_said_so() -> None:
    flaky = (
        "if os.path.exists('seen'):\n    return []\nopen('seen', 'w').close()\n"
        "return [('kv', 'stray')]"
    )
    write_backend(flaky)
    case = big_case(3)
    found = check("run", [case], workers=1)
    (event,) = [e for e in found.events if isinstance(e, Reduced)]
    assert (event.original, event.reduced, event.complete) == (case.id, case.id, False)
    assert event.evaluations == 3
    (group,) = found.failures
    assert group.reproducer is not None
    assert decode_reproducer(group.reproducer.read_bytes()).case == case


def test_a_fault_of_treeproof_on_a_smaller_case_costs_no_reduction_and_is_said() -> None:
    write_backend(f"if case.seed == 0:\n    raise KeyError('own fault')\n{LEAK}")
    found = check("run", [big_case(1)])
    (group,) = found.failures
    smallest = found.folder.read_case(group.case)
    assert (len(smallest.requests[0].tree), smallest.seed) == (3, 1)
    assert found.exit_code == 4
    assert found.finished is not None
    assert "own fault" in found.finished.reason


def test_two_failures_of_one_backend_are_reduced_each_for_itself() -> None:
    deep = "[('kv', 'deep')] if max(case.requests[0].tree.depth) >= 3 else []"
    fork = f"[('visibility', 'reads-sibling')] if {FORKED} else []"
    write_backend(f"return [*({fork}), *({deep})]")
    found = check("run", [big_case(1)])
    sizes = {g.kind: len(found.folder.read_case(g.case).requests[0].tree) for g in found.failures}
    assert sizes == {"reads-sibling": 3, "deep": 4}


def test_a_kept_failure_is_replayed_first_and_dropped_once_it_passes() -> None:
    write_backend(LEAK)
    check("first", [big_case(1)])
    assert kept() == [Path("kept/failures/mine/visibility-reads-sibling.json")]

    again = check("second", [], workers=1)  # nothing drawn: only what was kept
    assert [c.unit for c in again.cases] == ["saved-mine"]
    assert again.exit_code == 1
    assert len(kept()) == 1

    write_backend(MENDED)
    assert check("third", [big_case(9)]).exit_code == 0
    assert kept() == []


def test_a_kept_failure_stays_while_another_case_fails_alike_or_it_was_not_judged() -> None:
    write_backend(LEAK)
    check("first", [big_case(1)])
    small = "return [('visibility', 'reads-sibling')] if len(case.requests[0].tree) > 4 else []"
    write_backend(small)
    check("second", [big_case(1)], reduce=False)
    (path,) = kept()
    assert decode_reproducer(path.read_bytes()).case == big_case(1)
    write_backend("raise NotImplementedError")
    check("third", [big_case(1)])
    assert kept() == [path]


def test_kept_failures_of_other_backends_are_left_alone() -> None:
    write_backend(LEAK)
    check("first", [big_case(1)])
    Path("mine.py").write_text(Path("mine.py").read_text().replace("'mine'", "'yours'"))
    found = check("second", [big_case(2)])
    assert {c.unit for c in found.cases} == {"given"}
    assert [path.parent.name for path in kept()] == ["mine", "yours"]


def reproducer_of(run: Run) -> Reproducer:
    (group,) = run.failures
    assert group.reproducer is not None
    return decode_reproducer(group.reproducer.read_bytes())


def as_run(*given: Any, **options: Any) -> Replay:
    shutil.rmtree("replayed", ignore_errors=True)
    found, run = replay_as_run(*given, run_dir=Path("replayed"), **options)
    assert (run.exit_code == 1) == bool(found.failures)
    return found


@pytest.mark.parametrize(
    ("replay", "in_process"), [(replay, False), (replay, True), (as_run, False)]
)
def test_replay_says_failed_and_then_fixed(replay: Callable[..., Replay], in_process: bool) -> None:
    backend = write_backend(LEAK)
    reproducer = reproducer_of(check("run", [big_case(1)], workers=0))

    def outcome(body: str) -> tuple[Outcome, str]:
        write_backend(body)
        found = replay(reproducer, backend, in_process=in_process, checker=CHECKER)
        return found.outcome, found.detail

    assert outcome(LEAK) == (Outcome.FAILED, f"reads-sibling on {reproducer.case.id}")
    assert outcome(MENDED) == (Outcome.FIXED, "visibility holds on this case")
    other = outcome("return [('kv', 'stray')]")
    assert other[0] == Outcome.FIXED
    assert "fails in another way: kv: stray" in other[1]
    assert outcome("return [('visibility', 'blind')]")[0] == Outcome.FAILED
    assert outcome("raise NotImplementedError")[0] == Outcome.ERROR


@pytest.mark.parametrize("in_process", [False, True])
def test_a_fault_of_treeproof_is_no_outcome_of_a_replay(in_process: bool) -> None:
    backend = write_backend(LEAK)
    reproducer = reproducer_of(check("run", [big_case(1)], workers=0))
    write_backend("raise KeyError('our own')")
    with pytest.raises(InternalError, match="our own"):
        replay(reproducer, backend, in_process=in_process, checker=CHECKER)
    found, as_a_run = replay_as_run(
        reproducer, backend, in_process=in_process, run_dir=Path("replayed"), checker=CHECKER
    )
    assert (found.outcome, as_a_run.exit_code) == (Outcome.ERROR, 4)


def test_replay_survives_a_crash_and_a_missing_backend() -> None:
    backend = write_backend("ctypes.string_at(0)")
    reproducer = reproducer_of(check("run", [big_case(1)], reduce=False))
    found = replay(reproducer, backend, checker=CHECKER)
    assert (found.outcome, found.failures[0].kind) == (Outcome.FAILED, "crash")
    write_backend(MENDED)
    assert replay(reproducer, backend, checker=CHECKER).outcome == Outcome.FIXED
    Path("needy.py").write_text("import a_package_that_is_not_there\n")
    for name in ("nothing", "needy.py"):
        assert replay(reproducer, name, checker=CHECKER).outcome == Outcome.ERROR
