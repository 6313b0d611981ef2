"""A run's events may be many gigabytes: they are read one after another, and most of them let go."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from large_run import WRONG, large_run

from treeproof.engine.gathered import Gathered
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.summary import Run

T = TypeVar("T")
SMALL, LARGE = 8_000_000, 300_000_000


def peak_of(make: Callable[[], T]) -> tuple[int, T]:
    """Bytes of memory that Python took at most, and what was made."""
    tracemalloc.start()
    try:
        made = make()
        return tracemalloc.get_traced_memory()[1], made
    finally:
        tracemalloc.stop()


def test_reading_a_run_takes_a_part_of_what_its_events_take(tmp_path: Path) -> None:
    cases = large_run(tmp_path / "run", SMALL)
    folder = RunFolder(tmp_path / "run")
    peak, found = peak_of(lambda: Gathered.of(folder.placed_events()))
    run = Run(folder, folder.read_meta(), found)
    assert peak < SMALL / 4
    whole, _ = peak_of(lambda: list(run.events))
    assert whole > SMALL / 2  # what is measured is what is held
    lines = (tmp_path / "run" / "events-w0.ndjson").read_text().splitlines()
    assert len(run.cases) == cases
    assert len(run.checks) == sum('"type":"checked"' in line for line in lines) == 5 * cases
    (group,) = run.failures
    failing = [line for line in lines if '"failures"' in line]
    assert (group.backend, group.checks) == (WRONG, len(failing))


def test_what_was_let_go_is_read_again_where_it_is_asked_for(tmp_path: Path) -> None:
    large_run(tmp_path / "run", 300_000)
    run = Run.read(tmp_path / "run")
    (group,) = run.failures
    outline = next(check for check in run.checks if check.case == group.case and check.failures)
    assert (len(outline.failures), outline.failures[0].message, outline.recovered) == (1, "", ())
    assert len(group.checked.failures) % 7 == 0
    assert group.checked.failures[0].message.startswith("row 0 reads row 1")
    assert {found.evidence for found in group.checked.recovered} == {"declared", "measured"}
    assert group.failure == group.checked.failures[0]


MEASURED = """
import resource, sys
from pathlib import Path
from treeproof.engine.gathered import Gathered
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.summary import Run
from treeproof.reports.files import write_reports
folder = Path(sys.argv[1])
write_reports([Run.read(folder)], folder=folder / "reports")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.long
def test_reports_of_three_hundred_megabytes_take_less_than_two_hundred(tmp_path: Path) -> None:
    large_run(tmp_path / "run", LARGE)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "run")],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    print(f"{done.stdout.strip()} MiB of {LARGE / 2**20:.0f}, the interpreter among them")
    assert int(done.stdout) < 200
