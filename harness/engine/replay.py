"""One reproducer run again: is it fixed?"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Failure
from treeproof.contract.registry import BackendError
from treeproof.contract.wire import Reproducer
from treeproof.engine.beginning import load_backends
from treeproof.engine.loss import events_of_loss
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.runner import CHECKER
from treeproof.engine.worker import InternalError, WorkerSettings
from treeproof.engine.worker_pool import Done, WorkerPool


class Outcome(StrEnum):
    FAILED = "FAILED"
    """It fails in the same way still."""
    FIXED = "FIXED"
    """The identity was judged and holds."""
    ERROR = "ERROR"
    """It could not be found out."""


@dataclass(frozen=True)
class Replay:
    """What came of it. `failures` has every failure seen, those of another kind included."""

    outcome: Outcome
    detail: str
    checked: Checked | None = None

    @property
    def failures(self) -> tuple[Failure, ...]:
        return () if self.checked is None else self.checked.failures


def replay(
    reproducer: Reproducer,
    backend: str,
    *,
    device: str | None = None,
    profile: str = "quick",
    launch_timeout: float = 60.0,
    in_process: bool = False,
    checker: str = CHECKER,
) -> Replay:
    """Check the case of a reproducer on a backend, judged in all columns.

    `backend` is a reference as `registry.load` takes it. `device` None is the reproducer's. The
    check runs in a worker, where a crash is a finding, or `in_process`, where a debugger can follow.
    """
    with tempfile.TemporaryDirectory(prefix="treeproof-") as place:
        folder = RunFolder(Path(place))
        folder.make()
        settings = WorkerSettings(
            folder=folder.path,
            checker=checker,
            device=device or reproducer.device,
            profile=profile,
            launch_timeout=launch_timeout,
            watched=not in_process,
        )
        pool = WorkerPool(settings, 0 if in_process else 1)
        try:
            return _replay(reproducer, backend, pool, launch_timeout)
        except (BackendError, InternalError) as error:
            return Replay(Outcome.ERROR, str(error))
        finally:
            pool.stop()


def _replay(
    reproducer: Reproducer, backend: str, pool: WorkerPool, launch_timeout: float
) -> Replay:
    (meta,) = load_backends((backend,), pool)
    if meta.unavailable:
        return Replay(Outcome.ERROR, f"backend {backend} cannot run here: {meta.unavailable}")
    outcome = pool.ask(
        pool.seats[0],
        meta,
        reproducer.case,
        frozenset(COLUMNS),
        launch_timeout=launch_timeout,
        abandoned=threading.Event(),
    )
    assert outcome is not None
    if isinstance(outcome, Done):
        return _judge(reproducer, outcome.checks[0])
    if outcome.blamed is None:
        return Replay(Outcome.ERROR, outcome.detail)
    return _judge(reproducer, events_of_loss(outcome, COLUMNS)[1])


def _judge(reproducer: Reproducer, checked: Checked) -> Replay:
    identity, kind = reproducer.failure.identity, reproducer.failure.kind
    same = [f for f in checked.failures if f.key == (identity, kind)]
    others = sorted({f"{f.identity}: {f.kind}" for f in checked.failures} - {f"{identity}: {kind}"})
    beside = f"; it fails in another way: {', '.join(others)}" if others else ""
    if same:
        return Replay(Outcome.FAILED, f"{same[0].message}{beside}", checked)
    cells = [cell for cell in checked.cells if cell.identity == identity]
    if any(cell.status == "fail" for cell in cells):
        return Replay(Outcome.FAILED, f"{identity} fails, though not as {kind}{beside}", checked)
    if not any(cell.status == "pass" for cell in cells):
        reasons = sorted({cell.reason for cell in cells if cell.reason})
        why = "; ".join(reasons) or "no evidence of it"
        return Replay(Outcome.ERROR, f"{identity} was not checked: {why}{beside}", checked)
    return Replay(Outcome.FIXED, f"{identity} holds on this case{beside}", checked)
