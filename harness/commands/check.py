"""`treeproof check`: backends against the five identities."""

from __future__ import annotations

from typing import Any

import click

from treeproof.commands.asked import require_known
from treeproof.commands.exit_codes import EXIT_CODES
from treeproof.commands.interrupt import interruptible
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import run_options, settings_from

BUILT_IN = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
"""What is checked where no backend is named."""


@click.command(epilog=EXIT_CODES)
@click.argument("targets", nargs=-1, metavar="[BACKEND|FILE]...")
@run_options()
def check(targets: tuple[str, ...], **options: Any) -> int:
    """Check backends against the five identities.

    BACKEND is a name (`treeproof backends` lists them), module:name, or a file that registers one:
    path/to/file.py or path/to/file.py:name. Without any, the five built-in backends are checked.

    \b
    treeproof check
    treeproof check cascade my_kernel.py --seed 7
    treeproof check --trees shapes.json --prefix 0 --prefix 4096
    treeproof check my_kernel.py --identity visibility --profile nightly --time 30m
    treeproof check my_kernel.py --in-process -x        then put a breakpoint into it
    treeproof check my_kernel.py --device cuda --sanitize    which kernel reads out of bounds

    The same seed draws the same cases, whatever the number of workers. Settings may stand in
    [tool.treeproof] of pyproject.toml under the names of the options; an option wins over it.
    """
    settings = settings_from(options, targets, BUILT_IN)
    require_known(settings.backends)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console
    from treeproof.reports.progress import Progress
    from treeproof.reports.terminal import report

    console = open_console()
    with interruptible(), Progress(console, time_limit=settings.time_limit) as progress:
        found = run(settings, progress)
    with leave_reports([found], settings.report_dir, settings.junit):
        report(console, found)
    return found.exit_code
