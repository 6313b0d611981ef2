"""`treeproof trace`: one row through the stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treeproof.commands.asked import read_case, require_known, require_row
from treeproof.commands.exit_codes import CLEAN
from treeproof.commands.options import BACKEND, CASE_FILE, run_options, settings_from


@click.command()
@CASE_FILE
@click.option("--request", type=int, default=0, show_default=True, help="Request of the batch.")
@click.option("--row", type=int, required=True, help="Verify row within the request.")
@BACKEND
@run_options("device", "launch-timeout")
def trace(case_file: Path, request: int, row: int, backend: str | None, **options: Any) -> int:
    """Follow one row through the stages.

    Its token, position, visible keys, links and slot, as they must be.
    With --backend, what its check recovered or declared stands beside. It runs on the device that
    a failure was found on, unless another is given.

    \b
    treeproof trace case.json --row 2
    treeproof trace case.json --request 1 --row 5 --backend my_kernel.py
    """
    from treeproof.reports.console import open_console, write
    from treeproof.reports.trace import trace_lines

    case, reproducer = read_case(case_file)
    require_row(case, request, row)
    checked = None
    if backend is not None:
        require_known((backend,))
        settings = settings_from(options, (backend,))
        from treeproof.engine.alone import check_alone

        found_on = reproducer.device if reproducer is not None else settings.device
        checked = check_alone(
            case,
            backend,
            device=settings.device if options["device"] else found_on,
            launch_timeout=settings.launch_timeout,
            in_process=settings.workers == 0,
        )
    write(open_console(), trace_lines(case, request, row, checked))
    return CLEAN
