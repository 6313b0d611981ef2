"""The controller's side of the workers: hands tasks out, and says who was at fault for a loss."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pebble import ProcessExpired

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.engine import worker
from treeproof.engine.in_flight import read_in_flight, record_path, trace_path
from treeproof.engine.run_folder import BackendMeta, RunFolder, read_events
from treeproof.engine.seat import OwnSeat, ProcessSeat, Seat
from treeproof.engine.worker import Task, WorkerSettings

QUEUED = 2
"""Tasks a worker holds: one that it runs and one so that it never waits for the controller."""
TICK = 0.25
GRACE = 10.0
"""Seconds that a worker's own watchdog has before the controller ends the worker."""
TRACE_LINES = 12


@dataclass(frozen=True)
class Done:
    """A task that came to its end."""

    task: Task
    checks: tuple[Checked, ...]


@dataclass(frozen=True)
class Lost:
    """A task whose worker died. `checks` were finished before; `blamed` was being checked.

    `blamed` None: the worker was between two checks, or never began.
    """

    task: Task
    checks: tuple[Checked, ...]
    blamed: BackendMeta | None
    stage: str
    how: Literal["crash", "hang"]
    detail: str


@dataclass(eq=False)
class _Launch:
    task: Task
    seat: Seat
    future: Future[Any]
    launch_timeout: float
    missing: int = 0
    """Ticks for which its process has been gone without a word from the pool."""
    ended: bool = False
    """We ended its process: it had outlived its own watchdog."""


class WorkerPool:
    """All workers of a run."""

    def __init__(self, settings: WorkerSettings, workers: int) -> None:
        """`workers` 0: tasks run in this process."""
        kind = settings.device.partition(":")[0]
        self._settings = replace(settings, watched=workers > 0)
        self._folder = RunFolder(settings.folder)
        self._numbers = itertools.count(1)
        self._launches: list[_Launch] = []
        self.seats: Sequence[Seat] = (
            [ProcessSeat(f"w{i}", kind) for i in range(workers)] if workers else [OwnSeat(kind)]
        )

    @property
    def busy(self) -> bool:
        return bool(self._launches)

    @property
    def has_room(self) -> bool:
        return len(self._launches) < QUEUED * len(self.seats)

    def submit(
        self, case: VerifyCase, backends: tuple[BackendMeta, ...], identities: frozenset[str]
    ) -> None:
        """Check a case, recorded in the run folder; the outcome comes from `wait`."""
        held = {id(seat): 0 for seat in self.seats}
        for launch in self._launches:
            held[id(launch.seat)] += 1
        seat = min(self.seats, key=lambda seat: held[id(seat)])
        self._launches.append(self._launch(seat, case, backends, identities, seat.name))

    def wait(self) -> list[Done | Lost]:
        """What has ended, after a moment at most; empty where nothing has.

        Raises InternalError where treeproof itself failed.
        """
        wait({launch.future for launch in self._launches}, TICK, FIRST_COMPLETED)
        ended = []
        for launch in list(self._launches):
            outcome = self._outcome(launch)
            if outcome is not None:
                self._launches.remove(launch)
                ended.append(outcome)
        return ended

    def ask(
        self,
        seat: Seat,
        backend: BackendMeta,
        case: VerifyCase,
        identities: frozenset[str],
        *,
        launch_timeout: float,
        abandoned: threading.Event,
    ) -> Done | Lost | None:
        """Check a case on one worker and wait for it, recording nothing; None once abandoned."""
        if abandoned.is_set():
            return None
        launch = self._launch(seat, case, (backend,), identities, "", launch_timeout)
        while not abandoned.is_set():
            wait({launch.future}, TICK)
            outcome = self._outcome(launch)
            if outcome is not None:
                return outcome
        return None

    def stop(self) -> None:
        """End all workers now."""
        for seat in self.seats:
            seat.stop()

    def _launch(
        self,
        seat: Seat,
        case: VerifyCase,
        backends: tuple[BackendMeta, ...],
        identities: frozenset[str],
        writer: str,
        launch_timeout: float | None = None,
    ) -> _Launch:
        task = Task(next(self._numbers), case, backends, identities, writer)
        settings = self._settings
        if launch_timeout is not None:
            settings = replace(settings, launch_timeout=launch_timeout)
        future = seat.submit(worker.check, task, settings)
        return _Launch(task, seat, future, settings.launch_timeout)

    def _outcome(self, launch: _Launch) -> Done | Lost | None:
        if launch.future.done():
            error = launch.future.exception()
            if error is None:
                return Done(launch.task, tuple(launch.future.result()))
            if isinstance(error, ProcessExpired | BrokenProcessPool):
                return self._lost(launch, getattr(error, "exitcode", None))
            raise error
        if self._settings.watched and self._is_gone(launch):
            launch.future.cancel()
            return self._lost(launch, None)
        return None

    def _is_gone(self, launch: _Launch) -> bool:
        """Whether the pool missed the end of a process, as it does one with exit code 0.

        A process that outlived its own watchdog is ended here; the pool then reports it.
        """
        record = read_in_flight(self._folder.in_flight, launch.task.number)
        if record is None:
            return False
        try:
            os.kill(record.pid, 0)
            launch.missing = 0
            path = record_path(self._folder.in_flight, launch.task.number)
            if time.time() - path.stat().st_mtime > launch.launch_timeout + GRACE:
                launch.ended = True
                os.kill(record.pid, signal.SIGKILL)
        except ProcessLookupError:
            launch.missing += 1
        except FileNotFoundError:  # it ended its task this moment
            pass
        return launch.missing >= 4

    def _lost(self, launch: _Launch, exit_code: int | None) -> Lost:
        task, folder = launch.task, self._folder.in_flight
        record = read_in_flight(folder, task.number)
        trace = _read_trace(trace_path(folder, task.number))
        checks: tuple[Checked, ...] = ()
        blamed = None
        if record is not None:
            if record.events and (path := self._folder.path / record.events).exists():
                events = read_events(path, record.offset)
                checks = tuple(event for event in events if isinstance(event, Checked))
            finished = {checked.backend for checked in checks}
            blamed = next(
                (
                    meta
                    for meta in task.backends
                    if meta.name == record.backend and meta.name not in finished
                ),
                None,
            )
        for path in (record_path(folder, task.number), trace_path(folder, task.number)):
            path.unlink(missing_ok=True)
        hung = launch.ended or trace.startswith("Timeout (")
        end = f"no progress for {launch.launch_timeout:g} s" if hung else ending(exit_code)
        return Lost(
            task=task,
            checks=checks,
            blamed=blamed,
            stage=record.stage if record is not None else "",
            how="hang" if hung else "crash",
            detail="\n".join(filter(None, (end, trace))),
        )


def ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "the worker process ended without a word, or could not start"
    if exit_code >= 0:
        return f"the worker process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"the worker process ended by {name}{hint}"


def _read_trace(path: Path) -> str:
    """The first lines of what the dying process wrote: the most recent calls come first."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[:TRACE_LINES])
