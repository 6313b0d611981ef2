"""`treeproof compare`: what changed from one run to another."""

from __future__ import annotations

from pathlib import Path

import click

from treeproof.commands.exit_codes import CLEAN, VIOLATED
from treeproof.commands.options import PATH


@click.command()
@click.argument("before", metavar="A", type=PATH)
@click.argument("after", metavar="B", type=PATH)
def compare(before: Path, after: Path) -> int:
    """Say what changed from run A to run B.

    New failures, those that are still there, those that are gone, and margins that moved: is the new
    version of a kernel library right where the old one was? Two runs tell most where they drew the
    same cases (one seed, one profile); what differs besides is printed first. Exit code 1: B has a
    failure that A has not; 0: it has none.

    \b
    treeproof check fa3-page-table --seed 7 --run-dir old      before the upgrade
    treeproof check fa3-page-table --seed 7 --run-dir new      after it
    treeproof compare old new
    """
    from treeproof.engine.summary import Run
    from treeproof.reports.comparison import compare as compared
    from treeproof.reports.comparison_lines import comparison_lines
    from treeproof.reports.console import open_console, write

    found = compared(Run.read(before), Run.read(after))
    write(open_console(), comparison_lines(found))
    return VIOLATED if found.new else CLEAN
