"""`treeproof report`: the reports of runs that are over, or were cut short."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeproof.commands.exit_codes import CLEAN
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import PATH

if TYPE_CHECKING:
    from treeproof.engine.summary import Run

PAGE = Path("report.html")


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("-o", "--output", type=PATH, help=f"Write the page there. Default {PAGE}.")
@click.option(
    "--report", "report_dir", type=PATH, metavar="FOLDER",
    help="Write what check --report writes: page, JUnit XML, summary and badge.",
)  # fmt: skip
@click.option("--junit", type=PATH, metavar="FILE", help="Write JUnit XML there.")
def report(
    folders: tuple[Path, ...], output: Path | None, report_dir: Path | None, junit: Path | None
) -> int:
    """Write the reports of a run.

    RUN is a run folder, as check prints it, of a run that came to its end or was killed. The page opens
    from disk, without a network; several runs make one page. With --report or --junit the CI service is
    told as by check. Failures of a run that was killed are kept in its folder, for replay. Exit code 0:
    written, whatever the run found; 2: no run could be read.

    \b
    treeproof report .treeproof/runs/RUN
    treeproof report nightly/* -o nightly.html
    treeproof report .treeproof/runs/RUN --report reports
    """
    from treeproof.engine.summary import Run

    runs = [Run.read(folder) for folder in folders]
    for run in runs:
        _keep_failures(run)
    asked = report_dir is not None or junit is not None
    with leave_reports(runs, report_dir, junit) if asked else nullcontext():
        if output is not None or not asked:
            _write_page(runs, output or PAGE)
    return CLEAN


def _keep_failures(run: Run) -> None:
    """A run that was killed came to write none: only with these can its failures be replayed."""
    from treeproof.engine.representatives import keep_missing

    try:
        lost = keep_missing(run)
    except OSError as error:  # reports of it can be made all the same
        lost = [f"{run.folder.path}: no failure can be kept there: {error.strerror or error}"]
    for why in lost:
        click.echo(why, err=True)


def _write_page(runs: list[Run], path: Path) -> None:
    from treeproof.reports.files import write_report
    from treeproof.reports.page.facts import page_of
    from treeproof.reports.page.render import render

    size = write_report(path, render(page_of(runs)))
    click.echo(f"wrote {path} ({size / 1e3:,.0f} kB)")
