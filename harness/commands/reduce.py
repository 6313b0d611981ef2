"""`treeproof reduce`: the smallest case that fails alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from treeproof.commands.asked import backend_for, read_case
from treeproof.commands.interrupt import interruptible
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import BACKEND, CASE_FILE, run_options, settings_of_case


@click.command()
@CASE_FILE
@BACKEND
@run_options("device", "launch-timeout", "run-dir", "workers", "report", "junit")
def reduce(case_file: Path, backend: str | None, device: str | None, **options: Any) -> int:
    """Find the smallest case that fails alike.

    Writes a reproducer for each distinct failure of the case and prints how to replay it. Exit
    code 0: nothing fails; 1: something does.

    \b
    treeproof reduce .treeproof/runs/RUN/cases/CASE.json --backend my_kernel.py
    treeproof reduce failure.json
    """
    case, reproducer = read_case(case_file)
    reference = backend_for(case_file, reproducer, backend)
    settings = settings_of_case({**options, "device": device}, reference, reproducer)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console, write
    from treeproof.reports.progress import Progress
    from treeproof.reports.replayed import reduction_lines

    console = open_console()
    with interruptible(), Progress(console) as progress:
        found = run(replace(settings, reduce=True, store=None, ledger=None), progress, cases=[case])
    with leave_reports([found], settings.report_dir, settings.junit):
        write(console, reduction_lines(found))
    return found.exit_code
