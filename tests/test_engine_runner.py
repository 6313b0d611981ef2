"""Runs with backends that crash, hang and die, on a checker that needs no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Began, Checked, Event, Underway, WorkerLost
from treeproof.contract.layout import KVLayout
from treeproof.contract.registry import BackendError
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import read_case_file
from treeproof.engine import worker_pool
from treeproof.engine.beginning import load_backends
from treeproof.engine.loss import Lost
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.summary import Run
from treeproof.engine.worker import WorkerSettings
from treeproof.engine.worker_pool import Done, WorkerPool
from treeproof.reports.terminal import figures

HERE = Path(__file__).parent
CHECKER = "engine_fake_checker"


def make_case(seed: int, nodes: int = 6) -> VerifyCase:
    tree = CandidateTree(tuple(range(nodes)), (-1, *(i // 2 for i in range(nodes - 1))))
    return VerifyCase(
        requests=(Request(tree=tree, row_of_node=tuple(range(nodes)), prefix_len=9),),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16),
        layout=KVLayout(page_size=4, num_slots=64),
        seed=seed,
    )


CASES = [make_case(seed) for seed in range(8)]


@pytest.fixture(autouse=True)
def _fake_checker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(HERE)  # workers inherit the path
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def backend(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a backend file: its name and the body of `attend(case)`."""

    def write(name: str, body: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(
            "import ctypes, os, signal, time\nimport treeproof\n\n\n"
            f"@treeproof.register({name!r})\ndef attend(case):\n" + textwrap.indent(body, "    ")
        )
        return str(path)

    return write


def check(
    *backends: str,
    cases: list[VerifyCase] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> Run:
    given = {"workers": 2, "reduce": False, "store": None, "run_dir": Path("run")} | settings
    return run(
        RunSettings(backends=backends, **given), on_event, cases=cases or CASES, checker=CHECKER
    )


def verdicts(run: Run) -> dict[tuple[str, str], tuple[str, ...]]:
    """Status of every cell, by case and backend."""
    return {(c.case, c.backend): tuple(cell.status for cell in c.cells) for c in run.checks}


def failing_cases(run: Run, backend: str) -> set[str]:
    return {c.case for c in run.checks if c.backend == backend and c.failures}


GOOD = "return []"


def test_every_case_goes_to_every_backend(backend: Callable[[str, str], str]) -> None:
    heard: list[Event] = []
    found = check(backend("one", GOOD), backend("two", GOOD), on_event=heard.append)
    pairs = {(c.case, c.backend) for c in found.checks}
    assert pairs == {(case.id, name) for case in CASES for name in ("one", "two")}
    assert (found.exit_code, found.failures, found.missing) == (0, (), ())
    shares = [event.share for event in heard if isinstance(event, Underway)]
    assert shares == [pytest.approx((n + 1) / len(CASES)) for n in range(len(CASES))]
    written = [event for event in heard if not isinstance(event, Underway)]
    assert sorted(map(repr, written)) == sorted(map(repr, found.events))
    assert list(Run.read(Path("run")).events) == list(found.events)


def test_a_failure_is_a_verdict_with_its_case_on_disk(backend: Callable[[str, str], str]) -> None:
    body = "return [('visibility', 'reads-sibling')] if case.seed in (3, 5) else []"
    found = check(backend("bad", body), backend("good", GOOD))
    assert failing_cases(found, "bad") == {CASES[3].id, CASES[5].id}
    assert failing_cases(found, "good") == set()
    (group,) = found.failures
    assert (group.key, group.checks) == (("bad", "visibility", "reads-sibling"), 2)
    assert found.exit_code == 1
    assert read_case_file(Path("run/cases") / f"{group.case}.json") in (CASES[3], CASES[5])


def test_the_case_is_on_disk_before_its_launch(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    body = f"""
    path = {str(tmp_path)!r} + f"/run/cases/{{case.id}}.json"
    return [] if os.path.exists(path) else [("contract", "no-case-file")]
    """
    assert check(backend("careful", textwrap.dedent(body))).exit_code == 0


DEATHS = {
    "segfault": ("ctypes.string_at(0)", "crash", "SIGSEGV (Segmentation fault)"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "SIGKILL"),
    "exit": ("os._exit(7)", "crash", "exit code 7"),
    "quiet-exit": ("os._exit(0)", "crash", "without a word"),
    "loop": ("while True: pass", "hang", "no progress for 2 s"),
    "loop-in-C": ("ctypes.PyDLL(None).sleep(60)", "hang", "no progress for 2 s"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_death_is_blamed_on_its_case_and_backend_and_nothing_else_is_lost(
    death: str, backend: Callable[[str, str], str]
) -> None:
    statement, how, words = DEATHS[death]
    body = f"if case.seed == 4:\n    {statement}\nreturn []"
    backends = backend("first", GOOD), backend("mortal", body), backend("last", GOOD)
    found = check(*backends, launch_timeout=2.0)
    (lost,) = found.losses
    assert (lost.case, lost.backend, lost.how) == (CASES[4].id, "mortal", how)
    assert words in lost.detail
    if death not in ("kill", "exit", "quiet-exit"):
        assert "mortal.py" in lost.detail  # the traceback says where
    (group,) = found.failures
    if death not in ("kill", "exit", "quiet-exit"):
        assert "attend (mortal.py, line 8), called by check_case" in group.failure.message
        assert "trial.py" not in group.failure.message
    assert (group.key, group.failure.severity) == (("mortal", "contract", how), how)
    assert group.failure.stage == "attend"
    expected = check(backend("first", GOOD), backend("last", GOOD), run_dir=Path("other"))
    rest = {place: cells for place, cells in verdicts(found).items() if place[1] != "mortal"}
    assert rest == verdicts(expected)
    assert len([c for c in found.checks if c.backend == "mortal"]) == len(CASES)
    assert list(Path("run/inflight").iterdir()) == []


def test_a_worker_that_disarms_its_watchdog_is_ended_from_outside(
    backend: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "GRACE", 0.5)
    disarm = "import faulthandler\nfaulthandler.cancel_dump_traceback_later()\n"
    body = f"if case.seed == 1:\n{textwrap.indent(disarm, '    ')}    while True: pass\nreturn []"
    found = check(backend("sly", body), cases=CASES[:3], workers=1, launch_timeout=1.5)
    (lost,) = found.losses
    assert (lost.case, lost.how) == (CASES[1].id, "hang")
    assert "no progress for 1.5 s" in lost.detail
    assert found.completed_checks("sly") == 3


def test_what_a_backend_prints_goes_to_a_file_and_nowhere_else(
    backend: Callable[[str, str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    print("::error title=forged::from Python", flush=True)
    os.write(2, b"\\x1b[31mfrom C\\n")
    return []
    """
    found = check(backend("loud", textwrap.dedent(body)), backend("quiet", GOOD), cases=CASES[:2])
    assert "forged" not in "".join(capfd.readouterr())
    printed = b"".join(path.read_bytes() for path in Path("run/output").iterdir())
    assert printed.count(b"::error title=forged::from Python\n") == 2
    assert printed.count(b"\x1b[31mfrom C\n") == 2
    assert f"printed  {len(printed)} bytes by backends, in run/output" in figures(found)
    silent = check(backend("quiet", GOOD), cases=CASES[:2], run_dir=Path("silent"))
    assert not Path("silent/output").exists()
    assert not [line for line in figures(silent) if line.startswith("printed")]


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1/0\n")
    with pytest.raises(BackendError, match="division by zero"):
        check(str(tmp_path / "broken.py"))
    assert not Path("run").exists()


def test_the_controller_does_without_torch() -> None:
    code = "import sys, treeproof.engine.runner, treeproof.engine.replay; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_backend_that_keeps_dying_is_given_up_and_the_others_go_on(
    backend: Callable[[str, str], str],
) -> None:
    cases = [make_case(seed) for seed in range(12)]
    found = check(backend("deadly", "os._exit(1)"), backend("good", GOOD), cases=cases, workers=1)
    assert 3 <= len(found.losses) <= 5
    assert all(lost.backend == "deadly" for lost in found.losses)
    given_up = [
        c
        for c in found.checks
        if c.backend == "deadly" and c.cells[0].reason.startswith("given up")
    ]
    assert len(given_up) == 12 - len(found.losses)
    assert all(cell.status == "not-checked" for c in given_up for cell in c.cells)
    assert found.completed_checks("good") == 12
    assert found.exit_code == 1


def test_a_worker_that_dies_between_two_tasks_is_replaced_without_blame(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    body = "import threading\nthreading.Timer(0.6, os._exit, (1,)).start()\nreturn []"
    folder = RunFolder(tmp_path / "run")
    folder.make()
    pool = WorkerPool(WorkerSettings(folder.path, CHECKER, "cpu", "quick", 5.0, True), workers=1)
    try:
        (meta,) = load_backends((backend("late", body),), pool)
        for case in CASES[:2]:
            pool.submit(case, (meta,), frozenset({"kv"}))
            outcomes: list[Done | Lost] = []
            while not outcomes:
                outcomes = pool.wait()
            assert [type(outcome) for outcome in outcomes] == [Done]
            time.sleep(1.2)  # its timer has gone off by now
    finally:
        pool.stop()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_number_of_workers_changes_no_verdict(
    workers: int, backend: Callable[[str, str], str]
) -> None:
    body = "return [('output', 'off')] if case.seed % 3 == 1 else []"
    backends = backend("bad", body), backend("good", GOOD)
    two = check(*backends, workers=2, run_dir=Path("two"))
    other = check(*backends, workers=workers, run_dir=Path("other"))
    assert verdicts(other) == verdicts(two)
    assert list(verdicts(other)) == list(verdicts(two))
    assert [g.key for g in other.failures] == [g.key for g in two.failures]
    assert [g.case for g in other.failures] == [g.case for g in two.failures]
    assert (other.exit_code, two.exit_code) == (1, 1)


def test_a_drawn_run_is_the_same_alone_and_with_two_workers(
    backend: Callable[[str, str], str],
) -> None:
    body = "return [('kv', 'odd')] if case.seed % 5 == 0 else []"
    runs = [
        run(
            RunSettings(
                backends=(backend("odd", body),),
                seed=seed,
                examples=30,
                workers=workers,
                store=None,
                reduce=False,
                run_dir=Path(f"run-{seed}-{workers}"),
            ),
            checker=CHECKER,
        )
        for seed, workers in ((11, 0), (11, 2), (12, 0))
    ]
    assert len(runs[0].cases) == 31  # and a script
    assert verdicts(runs[0]) == verdicts(runs[1])
    assert verdicts(runs[0]) != verdicts(runs[2])
    assert runs[0].event_classes == runs[1].event_classes


def test_the_same_case_given_twice_is_checked_once(backend: Callable[[str, str], str]) -> None:
    found = check(backend("good", GOOD), cases=[CASES[0], CASES[1], CASES[0]], workers=0)
    assert [c.case for c in found.checks] == [CASES[0].id, CASES[1].id]


def test_a_backend_that_crashes_at_import_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "crash.py"
    path.write_text("import ctypes\nctypes.string_at(0)\n")
    with pytest.raises(BackendError, match=r"crash\.py: its import: .*SIGSEGV"):
        check(str(path), workers=1)
    assert not Path("run").exists()


def test_unknown_backends_and_twins_are_usage_errors(backend: Callable[[str, str], str]) -> None:
    with pytest.raises(BackendError, match="no backend named 'nothing'"):
        check("nothing", workers=1)
    twin = Path("twin.py")
    twin.write_text(Path(backend("same", GOOD)).read_text())
    with pytest.raises(BackendError, match="both the backend 'same'"):
        check(backend("same", GOOD), str(twin), workers=1)


def test_an_unavailable_backend_is_listed_and_makes_the_run_incomplete(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    needy = tmp_path / "needy.py"
    needy.write_text(
        "import treeproof\nraise treeproof.BackendUnavailable('a_package_that_is_not_there')\n"
    )
    found = check(str(needy), backend("good", GOOD), workers=1)
    assert "a_package_that_is_not_there" in found.unavailable[str(needy)]
    assert found.completed_checks("good") == len(CASES)
    assert found.exit_code == 3


def test_an_identity_without_evidence_makes_the_run_incomplete(
    backend: Callable[[str, str], str],
) -> None:
    good, mute = backend("good", GOOD), backend("mute", "raise NotImplementedError")
    found = check(good, identities=("kv",), workers=0)
    assert (found.exit_code, found.missing) == (0, ())
    assert {cell.identity for c in found.checks for cell in c.cells} == {"kv"}
    found = check(mute, identities=("kv",), workers=0, run_dir=Path("mute"))
    assert found.exit_code == 3
    assert found.missing == (
        "backend mute completed no check",
        "kv was asked for and no backend gave evidence of it",
    )


def test_a_fault_of_treeproof_is_exit_code_4_and_keeps_what_was_found(
    backend: Callable[[str, str], str],
) -> None:
    body = "if case.seed == 5:\n    raise KeyError('a bug of our own')\nreturn []"
    found = check(backend("good", body), workers=1)
    assert found.exit_code == 4
    assert found.finished is not None
    assert "a bug of our own" in found.finished.reason
    assert f"checking good on case {CASES[5].id}" in found.finished.reason
    assert found.completed_checks("good") >= 5


def test_a_run_stops_at_the_first_failure_or_at_its_time(
    backend: Callable[[str, str], str],
) -> None:
    bad = backend("bad", "time.sleep(0.2)\nreturn [('output', 'off')]")
    found = check(bad, fail_fast=True, workers=1)
    assert 1 <= len(found.checks) <= 3
    assert found.finished is not None
    assert "first failure; 1 of 1 parts" in found.finished.reason
    found = check(bad, time_limit=0.3, workers=0, run_dir=Path("timed"))
    assert 1 <= len(found.checks) <= 3
    assert found.finished is not None
    assert "time limit of 0.3 s" in found.finished.reason


def test_settings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="profile is 'hasty': accepted are quick"):
        RunSettings(backends=("x",), profile="hasty")
    with pytest.raises(SettingsError, match="identities is 'depth'"):
        RunSettings(backends=("x",), identities=("depth",))
    with pytest.raises(SettingsError, match="backends is empty"):
        RunSettings()


def test_a_run_folder_is_never_written_over(backend: Callable[[str, str], str]) -> None:
    good = backend("good", GOOD)
    check(good, workers=0)
    with pytest.raises(SettingsError, match="run already holds a run"):
        check(good, workers=0)


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from treeproof.engine import worker_pool
from treeproof.engine.beginning import load_backends
from treeproof.engine.loss import Lost
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.contract.wire import read_case_file

print("started", flush=True)
cases = [read_case_file(path) for path in sorted(Path("given").glob("*.json"))]
settings = RunSettings(
    backends=({backend!r},), workers=2, reduce=False, store=None, run_dir=Path("run")
)
found = run(settings, lambda e: print(type(e).__name__, flush=True), cases=cases, checker={checker!r})
print("exit", found.exit_code, "checks", len(found.checks), flush=True)
"""


def start_script(backend: str) -> subprocess.Popen[str]:
    """A script as a user would write it: no `__main__` guard around the run."""
    from treeproof.contract.wire import encode_case

    Path("given").mkdir()
    for case in CASES:
        (Path("given") / f"{case.seed}.json").write_bytes(encode_case(case))
    script = Path("script.py")
    script.write_text(SCRIPT.format(here=str(HERE), backend=backend, checker=CHECKER))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As a terminal has it: what is started in the background inherits an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_check(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "Checked":
            return
    raise AssertionError("the script ended without a check")


def test_listeners_are_told_when_failures_are_reduced(backend: Callable[[str, str], str]) -> None:
    heard: list[Event] = []
    body = "return [('output', 'off')] if case.seed == 1 else []"
    check(backend("bad", body), on_event=heard.append, reduce=True, workers=0)
    (began,) = (i for i, event in enumerate(heard) if isinstance(event, Began))
    assert heard[began] == Began(what="reducing 1 failure")
    assert isinstance(heard[began - 1], Checked)
    assert not any("began" in f.read_text() for f in Path("run").glob("events-*"))


def test_a_script_without_a_main_guard_runs_once(backend: Callable[[str, str], str]) -> None:
    process = start_script(backend("good", GOOD))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.count("started") == 1
    assert "exit 0 checks 8" in output


def test_ctrl_c_keeps_what_was_found(backend: Callable[[str, str], str]) -> None:
    body = "time.sleep(0 if case.seed < 2 else 30)\nreturn [('output', 'off')]"
    process = start_script(backend("slow", body))
    wait_for_check(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: controller and workers alike
    started = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - started < 15
    assert "exit 130" in output
    found = Run.read(Path("run"))
    assert found.finished is not None
    assert (found.exit_code, found.finished.reason) == (130, "interrupted")
    assert 1 <= len(found.checks) <= 2
    (group,) = found.failures
    assert group.reproducer is not None
    assert read_case_file(group.reproducer)


def test_a_killed_run_loses_nothing_finished(backend: Callable[[str, str], str]) -> None:
    body = "time.sleep(0 if case.seed < 2 else 30)\nreturn [('output', 'off')]"
    process = start_script(backend("slow", body))
    wait_for_check(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    found = Run.read(Path("run"))
    assert found.finished is None
    assert found.exit_code == 1
    assert len(found.checks) >= 1
    assert [c for c in found.checks if isinstance(c, Checked) and c.failures]
    assert not any(isinstance(event, WorkerLost) for event in found.events)


FAKE_TORCH = """
class cuda:
    dead = False
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda index: "a device")
    synchronize = staticmethod(lambda device: None)

def zeros(count, device):
    if cuda.dead:
        raise RuntimeError("an illegal memory access was encountered")
"""


def test_a_spoilt_device_costs_its_worker_and_no_later_verdict(
    backend: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access everything in that process fails: the next check needs another."""
    Path("fake").mkdir()
    Path("fake/torch.py").write_text(FAKE_TORCH)
    monkeypatch.syspath_prepend("fake")
    faulty = """
    import torch
    if case.seed == 2:
        torch.cuda.dead = True
        return [("contract", "raised")]
    return []
    """
    innocent = "import torch\nreturn [('contract', 'raised')] if torch.cuda.dead else []"
    backends = backend("faulty", textwrap.dedent(faulty)), backend("innocent", innocent)
    found = check(*backends, device="cuda", workers=1, reduce=True)
    assert found.meta.device_name == "a device"
    assert failing_cases(found, "faulty") == {CASES[2].id}
    assert failing_cases(found, "innocent") == set()
    assert found.losses == ()
    assert found.completed_checks("innocent") == len(CASES)
    (group,) = found.failures
    assert group.reduced is not None
    assert group.reduced.complete  # every trial that fails costs a worker, and counts all the same
    assert found.folder.read_case(group.case).seed == 2
