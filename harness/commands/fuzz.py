"""`treeproof fuzz`: new cases until the time is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treeproof.commands.asked import require_known
from treeproof.commands.check import BUILT_IN
from treeproof.commands.exit_codes import EXIT_CODES
from treeproof.commands.interrupt import interruptible
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.of_campaign import (
    require_campaign,
    require_no_other,
    run_campaign,
    seeded,
)
from treeproof.commands.options import PATH, run_options, soak_settings


@click.command(epilog=EXIT_CODES)
@click.argument("targets", nargs=-1, metavar="[BACKEND|FILE]...")
@click.option(
    "--campaign",
    metavar="FOLDER",
    type=PATH,
    help="Run in parts and keep them there; again, to go on where it was left off.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Run the parts of a campaign on this Ray cluster: auto, host:port, ray://host:port, or local.",
)
@run_options(
    "examples", "backend", "identity", "time", "profile", "dtype", "seed", "device", "ledger", "run-dir",
    "workers", "launch-timeout", "fail-fast", "reduce", "shard", "report", "junit",
    "sanitize",
)  # fmt: skip
def fuzz(targets: tuple[str, ...], campaign: Path | None, **options: Any) -> int:
    """Draw new cases until the time is over.

    As check, for as long as you like: 30 minutes unless --time says otherwise, with the profile soak
    (trees of up to 129 rows, prefixes of up to 4,096 keys, all dtypes) unless --profile does. Each
    run draws other cases; the seed is printed, and the same seed draws the same cases again.
    Failures are reduced and kept as those of check are, and replayed first in the next run; of
    cases that pass, only the counts are kept. A campaign is such a run in parts of 72 cases, on this machine
    or on a Ray cluster, a GPU a part: a part that is lost is run again, those that are there are not, and
    FOLDER/run is the union of all. A backend that was mended since, or another ledger or version, needs a
    new FOLDER. With --examples it ends by itself. Profile, seed and time of [tool.treeproof] are for
    check alone.

    \b
    treeproof fuzz --time 30m
    treeproof fuzz my_kernel.py --time 8h -x -n 16
    treeproof fuzz my_kernel.py --profile nightly --device cuda --dtype bfloat16 --time 1h
    treeproof fuzz my_kernel.py --campaign soak --ray auto --device cuda --time 8h
    """
    settings = soak_settings(options, targets, BUILT_IN)
    require_known(settings.backends)
    if campaign is None:
        require_campaign(options)
    else:
        require_no_other(settings, options)
        settings = seeded(settings, campaign, options)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console
    from treeproof.reports.progress import Progress
    from treeproof.reports.terminal import report

    console = open_console()
    console.print(f"seed {settings.seed}, profile {settings.profile}", soft_wrap=True)
    with (
        interruptible(),
        Progress(console, time_limit=settings.time_limit, endless=True) as progress,
    ):
        if campaign is None:
            found = run(settings, progress)
        else:
            found = run_campaign(settings, campaign, options, progress)
    with leave_reports([found], settings.report_dir, settings.junit):
        report(console, found)
    return found.exit_code
