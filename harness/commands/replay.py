"""`treeproof replay`: is a failure fixed?"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click

from treeproof.commands.asked import backend_for, read_case
from treeproof.commands.exit_codes import CLEAN, INTERRUPTED, OWN_FAULT, USAGE, VIOLATED
from treeproof.commands.interrupt import interruptible
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import BACKEND, CASE_FILE, run_options, settings_of_case
from treeproof.contract.wire import FileError


@click.command()
@CASE_FILE
@BACKEND
@run_options("device", "launch-timeout", "report", "junit", "run-dir", "sanitize")
def replay(case_file: Path, backend: str | None, device: str | None, **options: Any) -> int:
    """Run a failure again: FIXED or FAILED?

    Exit code 0: fixed; 1: it fails still; 2: ERROR, it could not be found out; 4: treeproof itself
    failed; 130: interrupted. A case file never
    makes code be imported, so a backend that is a file is given with --backend. It runs on the
    device that it failed on, unless another is given. With --report, --junit or --sanitize it is kept as a
    run.

    \b
    treeproof replay .treeproof/runs/RUN/failures/cascade-kv-stray-write.json
    treeproof replay failure.json --backend my_kernel.py
    treeproof replay failure.json --backend my_kernel.py --in-process
    treeproof replay failure.json --backend my_kernel.py --device cuda --sanitize
    """
    _, reproducer = read_case(case_file)
    reference = backend_for(case_file, reproducer, backend)
    if reproducer is None:
        raise FileError(f"{case_file} is a plain case with no failure to replay: try reduce")
    settings = settings_of_case({**options, "device": device}, reference, reproducer)
    from treeproof.engine import replay as engine
    from treeproof.reports.console import open_console, write
    from treeproof.reports.replayed import replay_lines

    given = {
        "--backend": backend,
        "--device": device,
        "--launch-timeout": options["launch_timeout"],
    }
    words = ["treeproof", "replay", str(case_file)]
    words += [word for option, value in given.items() if value for word in (option, value)]
    told = partial(replay_lines, reproducer=reproducer, replay=shlex.join(words))
    if settings.report_dir is None and settings.junit is None and not settings.sanitize:
        done = engine.replay(
            reproducer,
            reference,
            device=settings.device,
            launch_timeout=settings.launch_timeout,
            in_process=settings.workers == 0,
        )
        write(open_console(), told(done))
    else:
        with interruptible():
            done, run = engine.replay_as_run(
                reproducer,
                reference,
                device=settings.device,
                launch_timeout=settings.launch_timeout,
                in_process=settings.workers == 0,
                run_dir=settings.run_dir,
                sanitize=settings.sanitize,
            )
        with leave_reports([run], settings.report_dir, settings.junit):
            write(open_console(), told(done))
        if run.exit_code in (OWN_FAULT, INTERRUPTED):
            return run.exit_code
    return {"FIXED": CLEAN, "FAILED": VIOLATED}.get(done.outcome, USAGE)
