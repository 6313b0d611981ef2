"""A run killed at any point: what an independent log says was finished is in the report, once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from treeproof.contract.event import Checked
from treeproof.engine.summary import Run
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render

TESTS = Path(__file__).parent
RUN = """
import sys
from pathlib import Path
import engine_logged_checker  # files get their names in this process
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
if __name__ == "__main__":
    run(
        RunSettings(
            backends=(sys.argv[1],), run_dir=Path(sys.argv[2]), store=None, examples=400,
            workers=2, dtype="float32", reduce=False,
        ),
        checker="engine_logged_checker",
    )
"""
BACKEND = """
import treeproof
@treeproof.register("leaking", stages={"attend"})
def attend(case):
    return [("visibility", "reads-sibling")] if case.seed % 5 == 0 else []
"""


def killed(folder: Path, dies: str, after: float | None) -> tuple[Run, list[str]]:
    """A run that a signal ended: from outside after so many seconds from its first event, or from
    within; and the log of what was finished."""
    folder.mkdir()
    script, backend, log = folder / "run.py", folder / "leaking.py", folder / "log"
    script.write_text(RUN)
    backend.write_text(BACKEND)
    log.touch()
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), str(backend), str(folder / "run")],
        env={
            **os.environ, "PYTHONPATH": path, "TREEPROOF_TEST_LOG": str(log),
            "TREEPROOF_TEST_DIES": dies,
        },
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if after is not None:
        while not log.stat().st_size and process.poll() is None:
            time.sleep(0.005)
        time.sleep(after)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(120) in (0, -signal.SIGKILL)
    return Run.read(folder / "run"), log.read_text().splitlines()


def assert_nothing_lost(run: Run, log: Sequence[str]) -> None:
    written = Counter(f"{e.case} {e.backend}" for e in run.events if isinstance(e, Checked))
    assert set(log) <= set(written)
    assert max(written.values(), default=1) == 1
    shown = Counter(f"{check.case} {check.backend}" for check in run.checks)
    assert set(shown) == set(written)
    assert max(shown.values(), default=1) == 1
    assert run.damage == ()
    html = render(page_of([run]))
    assert json.dumps("reads-sibling") not in html or run.failures
    if run.finished is None:
        assert "the run was cut short" in html


LONG = pytest.mark.long
INSIDE = ["line:7", "rename:9", *(pytest.param(d, marks=LONG) for d in ("line:1", "rename:2"))]


@pytest.mark.parametrize("dies", INSIDE)
def test_an_end_in_the_middle_of_a_write_loses_nothing_that_was_finished(
    tmp_path: Path, dies: str
) -> None:
    run, log = killed(tmp_path / "killed", dies, None)
    assert_nothing_lost(run, log)
    assert run.exit_code in (1, 3)


@pytest.mark.parametrize("point", [0, *(pytest.param(n, marks=LONG) for n in range(1, 46))])
def test_a_kill_at_a_random_point_loses_nothing_that_was_finished(
    tmp_path: Path, point: int
) -> None:
    run, log = killed(tmp_path / "killed", "", random.Random(point).uniform(0, 1.5))
    assert_nothing_lost(run, log)
    assert log
