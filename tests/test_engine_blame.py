"""Who is blamed for the end of a worker: whoever ends another alone, and nobody for having been at work."""

from __future__ import annotations

import resource
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.failure import COLUMNS
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import Reproducer, read_case_file
from treeproof.engine.blame import suspects
from treeproof.engine.replay import replay
from treeproof.engine.runner import run
from treeproof.engine.seat import ProcessSeat
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.reports.ending import last_words
from treeproof.reports.github import step_summary
from treeproof.reports.junit import junit_xml
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render

CHECKER = "engine_fake_checker"


@pytest.fixture(autouse=True)
def _fake_checker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # workers inherit the path
    monkeypatch.chdir(tmp_path)


def case(seed: int) -> VerifyCase:
    return VerifyCase(
        requests=(Request(tree=CandidateTree((7, 8), (-1, 0)), row_of_node=(0, 1), prefix_len=9),),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16),
        layout=KVLayout(page_size=4, num_slots=64),
        seed=seed,
    )


CASES = [case(seed) for seed in range(4)]
SLOW = "time.sleep(0.4)\nreturn []"
"""A right backend, long enough at work to be there when another one's harm is done."""


def backend(name: str, body: str) -> str:
    path = Path(f"{name}.py").absolute()
    head = "import ctypes, os, signal, threading, time\nimport treeproof\n\n\n"
    head += f"@treeproof.register({name!r})\ndef attend(case):\n"
    path.write_text(head + textwrap.indent(textwrap.dedent(body), "    "))
    return str(path)


def check(*backends: str, seconds: float = 5.0) -> Run:
    settings = RunSettings(
        backends=backends, workers=1, reduce=False, store=None, run_dir=Path("run"),
        launch_timeout=seconds,
    )  # fmt: skip
    return run(settings, cases=CASES, checker=CHECKER)


LATE = {
    "exit": ("threading.Timer(0.2, os._exit, (3,)).start()", "exit code 3"),
    "memory": ("threading.Timer(0.2, ctypes.string_at, (0,)).start()", "SIGSEGV"),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.2)", "SIGALRM"),
}


@pytest.mark.parametrize("harm", LATE)
def test_who_ends_a_process_while_another_is_at_work_is_blamed_and_the_other_is_not(
    harm: str,
) -> None:
    does, words = LATE[harm]
    late = backend("late", f"if case.seed == 1:\n    {does}\nreturn []")
    found = check(backend("first", SLOW), late, backend("last", SLOW))

    (group,) = found.failures
    assert group.key == ("late", "contract", "crash")
    assert (group.case, group.failure.stage) == (CASES[1].id, "afterwards")
    assert words in group.failure.message
    assert [(lost.backend, lost.case) for lost in found.losses] == [("late", CASES[1].id)]
    judged = {(c.backend, c.case) for c in found.checks if all(x.status == "pass" for x in c.cells)}
    assert {name for name, _ in judged} == {"first", "late", "last"}
    assert len(judged) == 3 * len(CASES) - 1
    (twice,) = (c for c in found.checks if (c.backend, c.case) == ("late", CASES[1].id))
    assert {cell.identity: cell.status for cell in twice.cells} == {
        **dict.fromkeys(COLUMNS, "pass"),
        "contract": "fail",
    }

    assert group.reproducer is not None
    reproducer = read_case_file(group.reproducer)
    assert isinstance(reproducer, Reproducer)
    assert replay(reproducer, late, checker=CHECKER).outcome == "FAILED"
    mended = backend("late", "return []")
    assert replay(reproducer, mended, checker=CHECKER).outcome == "FIXED"


@pytest.mark.parametrize("words", ["SIGKILL", "exit code 7", "no progress for 1 s"])
def test_an_end_that_does_not_come_again_is_blamed_on_nobody_and_told_everywhere(
    words: str,
) -> None:
    end = {
        "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
        "exit code 7": "os._exit(7)",
        "no progress for 1 s": "time.sleep(60)",
    }[words]
    # As if from outside: whoever is at work meets it once.
    body = f"""
    if case.seed == 2 and not os.path.exists("ended"):
        open("ended", "w").close()
        {end}
    return []
    """
    found = check(backend("before", "return []"), backend("met", body), seconds=1.0)

    assert (found.failures, found.exit_code) == ((), 0)
    assert {name: found.completed_checks(name) for name in ("before", "met")} == dict.fromkeys(
        ("before", "met"), len(CASES)
    )
    (lost,) = found.losses
    assert (lost.backend, lost.shared) == ("", ("before", "met"))
    reports = (
        "\n".join(line.plain for line in last_words(found)),
        step_summary([found]),
        junit_xml([found]).decode(),
        render(page_of([found])),
    )
    for report in reports:
        assert words in report
        assert "before, met had run in it" in report
        assert "nobody is blamed" in report


def test_a_run_that_is_interrupted_before_it_was_found_out_tells_the_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*of_a_seat: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProcessSeat, "renew", interrupted)
    found = check(backend("mortal", "os._exit(7)"))
    assert (found.exit_code, found.failures) == (130, ())
    assert "exit code 7" in found.unexplained[0]


FILL = "[os.open(os.devnull, 0) for _ in range({})]\nreturn []"
"""Files that nobody closes."""


@pytest.fixture
def _few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))  # workers inherit it
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_few_files")
def test_who_leaves_a_process_no_file_to_open_ends_that_process_and_nothing_else() -> None:
    found = check(backend("good", "return []"), backend("greedy", FILL.format(600)))
    assert {group.key for group in found.failures} == {("greedy", "contract", "crash")}
    assert "could open no more files" in found.failures[0].failure.message
    assert found.completed_checks("good") == len(CASES)
    assert (found.exit_code, found.unexplained) == (1, ())


@pytest.mark.usefixtures("_few_files")
def test_a_process_that_has_half_of_its_files_left_is_replaced_and_nobody_loses_a_verdict() -> None:
    # Four cases would open more files than a process may have.
    found = check(backend("good", "return []"), backend("untidy", FILL.format(300)))
    assert (found.exit_code, found.failures, found.losses) == (0, (), ())
    assert {found.completed_checks(name) for name in ("good", "untidy")} == {len(CASES)}
    assert len(list(Path("run").glob("events-w0-*"))) == len(CASES)


def test_of_what_ran_in_a_process_the_latest_is_suspected_first() -> None:
    ran = [("1", "a"), ("1", "b"), ("2", "a"), ("3", "a"), ("4", "a"), ("5", "c"), ("6", "b")]
    assert list(suspects(ran)) == [("b", ["6", "1"]), ("c", ["5"]), ("a", ["4", "3", "2"])]
