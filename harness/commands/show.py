"""`treeproof show`: a case, drawn."""

from __future__ import annotations

from pathlib import Path

import click

from treeproof.commands.asked import read_case
from treeproof.commands.exit_codes import CLEAN
from treeproof.commands.options import CASE_FILE


@click.command()
@CASE_FILE
def show(case_file: Path) -> int:
    """Draw a case: trees, rows, layout and keys.

    \b
    treeproof show .treeproof/runs/RUN/cases/CASE.json
    treeproof show case.json | less
    """
    from treeproof.reports.case_sheet import case_lines
    from treeproof.reports.console import open_console, write

    case, reproducer = read_case(case_file)
    head = [] if reproducer is None else [f"{reproducer.backend}: {reproducer.message}", ""]
    write(open_console(), [*head, *case_lines(case)])
    return CLEAN
