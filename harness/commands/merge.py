"""`treeproof merge`: several run folders as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treeproof.commands.exit_codes import EXIT_CODES
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import PATH, given_settings, run_options


@click.command(epilog=EXIT_CODES)
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The run folder to write.")
@run_options("report", "junit", in_process=False)
def merge(folders: tuple[Path, ...], output: Path, **options: Any) -> int:
    """Make one run of several: of other backends, shards or hosts.

    What comes out is a run folder as any other, for report, compare, replay and merge; the exit code is
    decided for all of it, so that a backend which one host could not run is no gap where another could.
    A check that several runs have counts once; where they judge it differently, all verdicts stand.

    Runs of another version, seed, profile, dtype, ledger, kind of device or GPU, of other shapes or
    identities, or of another source of a backend, are refused: exit code 2. When, where and with how many
    workers they were made, and how long they were given, may differ; that a backend was compiled otherwise,
    or that an older run does not name its source, is said.

    \b
    treeproof merge job-1/run job-2/run -o run
    treeproof merge runs/* -o run --report out
    """
    from treeproof.engine.merge import merge as merged
    from treeproof.engine.summary import Run
    from treeproof.reports.case_sheet import count
    from treeproof.reports.console import open_console, prose, write
    from treeproof.reports.terminal import report

    done = merged([Run.read(folder) for folder in folders], output)
    console = open_console()
    again = f"; {count(done.repeated, 'check')} in several of them" if done.repeated else ""
    where = given_settings(options)
    with leave_reports([done.run], where.get("report_dir"), where.get("junit")):
        report(console, done.run)
        write(console, [prose(f"merged {count(len(folders), 'run')}{again}")])
    return done.run.exit_code
