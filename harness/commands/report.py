"""`treeproof report`: runs as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from treeproof.commands.exit_codes import CLEAN
from treeproof.commands.options import PATH


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("-o", "--output", type=PATH, default=Path("report.html"), help="Default report.html.")
def report(folders: tuple[Path, ...], output: Path) -> int:
    """Write a run as one HTML page.

    RUN is a run folder, as check prints it. The page opens from disk, without a network; several runs
    make one page. Exit code 0: written, whatever the run found; 2: no run could be read.

    \b
    treeproof report .treeproof/runs/RUN
    treeproof report nightly/* -o nightly.html
    """
    from treeproof.engine.summary import Run
    from treeproof.reports.files import write_report
    from treeproof.reports.page.facts import page_of
    from treeproof.reports.page.render import render

    size = write_report(output, render(page_of([Run.read(folder) for folder in folders])))
    click.echo(f"wrote {output} ({size / 1e3:,.0f} kB)")
    return CLEAN
