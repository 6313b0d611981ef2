"""One case on one backend, outside a run: what a replay and a trace rest on."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Identity
from treeproof.contract.registry import BackendError
from treeproof.engine.beginning import device_names, load_backends
from treeproof.engine.loss import events_of_loss
from treeproof.engine.run_folder import BackendMeta, RunFolder
from treeproof.engine.worker import CHECKER, WorkerSettings
from treeproof.engine.worker_pool import Done, WorkerPool

CheckAlone = Callable[[VerifyCase, tuple[Identity, ...]], Checked]
"""The verdicts on a case, judged in these columns."""


def check_alone(
    case: VerifyCase,
    backend: str,
    *,
    device: str = "cpu",
    profile: str = "quick",
    launch_timeout: float = 60.0,
    in_process: bool = False,
    checker: str = CHECKER,
    linger: float = 0.0,
) -> Checked:
    """The verdicts of one backend on one case, judged in all columns; nothing is kept on disk.

    `backend` is a reference as `registry.load` takes it. The check runs in a worker, where a crash
    or a hang is a finding, up to `linger` seconds after it, or `in_process`, where a debugger can follow.
    Raises BackendError where the backend or the device is not there or its worker was lost outside the
    check, BackendUnavailable where the backend cannot run here, InternalError where treeproof itself fails.
    """
    with checking_alone(
        backend,
        device=device,
        profile=profile,
        launch_timeout=launch_timeout,
        in_process=in_process,
        checker=checker,
        linger=linger,
    ) as check:
        return check(case, COLUMNS)


@contextmanager
def checking_alone(
    backend: str,
    *,
    device: str = "cpu",
    profile: str = "quick",
    launch_timeout: float = 60.0,
    in_process: bool = False,
    checker: str = CHECKER,
    linger: float = 0.0,
) -> Iterator[CheckAlone]:
    """The same for many cases, one after another, on one worker, each in its own columns."""
    with tempfile.TemporaryDirectory(prefix="treeproof-") as place:
        folder = RunFolder(Path(place))
        folder.make()
        settings = WorkerSettings(
            folder=folder.path,
            checker=checker,
            device=device,
            profile=profile,
            launch_timeout=launch_timeout,
            watched=not in_process,
            linger=linger,
        )
        pool = WorkerPool(settings, 0 if in_process else 1)
        try:
            device_names(pool)
            (meta,) = load_backends((backend,), pool)
            if meta.unavailable:
                raise BackendUnavailable(f"backend {backend} cannot run here: {meta.unavailable}")
            yield partial(_check, pool, meta, launch_timeout)
        finally:
            pool.stop()


def _check(
    pool: WorkerPool,
    meta: BackendMeta,
    launch_timeout: float,
    case: VerifyCase,
    columns: tuple[Identity, ...],
) -> Checked:
    outcome = pool.ask(
        pool.seats[0],
        meta,
        case,
        frozenset(columns),
        launch_timeout=launch_timeout,
        abandoned=threading.Event(),
    )
    assert outcome is not None
    if isinstance(outcome, Done):
        return outcome.checks[0]
    if outcome.at_work is None:
        raise BackendError(outcome.detail)
    return events_of_loss(outcome, columns)[1]
