"""`treeproof backends`: what there is to check, and what it takes."""

from __future__ import annotations

import click

from treeproof.commands.exit_codes import CLEAN
from treeproof.contract.registry import entry_points, load


@click.command()
def backends() -> int:
    """List backends and what they take.

    What cannot run here is listed with the reason and what to install.

    \b
    treeproof backends
    """
    from treeproof.reports.backends_table import backend_lines, entries
    from treeproof.reports.console import open_console, write

    write(open_console(), backend_lines(entries(entry_points(), load)))
    return CLEAN
