"""The controller's side of the workers: hands tasks out and notices what came of each."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

from pebble import ProcessExpired

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked, Diagnosed, Shown
from treeproof.contract.failure import COLUMNS, PROBES
from treeproof.contract.known_failure import KnownFailure
from treeproof.engine import worker
from treeproof.engine.gpus import ANY, of_workers, own_device
from treeproof.engine.in_flight import read_in_flight, record_path
from treeproof.engine.loss import Lost, examine_loss
from treeproof.engine.run_folder import BackendMeta, RunFolder
from treeproof.engine.seat import OwnSeat, ProcessSeat, Seat
from treeproof.engine.watchdog import heaviness, seconds_for
from treeproof.engine.worker import Task, WorkerSettings

QUEUED = 2
"""Tasks a worker holds: one that it runs and one so that it never waits for the controller."""
TICK = 0.25
GRACE = 10.0
"""Seconds that a worker's own watchdog has before the controller ends the worker."""
LATE = 1.0
"""Seconds that the pool has to report the end of a process."""
MOST_TRIES = 3

Known = Mapping[str, tuple[KnownFailure, ...]]
"""Entries of a ledger that name a cause, by backend."""
NOTHING_KNOWN: Known = {}


@dataclass(frozen=True)
class Done:
    """A task that came to its end."""

    task: Task
    checks: tuple[Checked, ...]
    diagnosed: tuple[Diagnosed, ...] = ()
    """Where a cause was asked for and found, as `look` gives it."""
    shown: Shown | None = None
    """What was seen beside it."""


@dataclass(eq=False)
class _Launch:
    task: Task
    seat: Seat
    future: Future[Any]
    launch_timeout: float
    gone_since: float | None = None
    """When its process was first found gone without a word from the pool."""
    ended: bool = False
    """We ended its process: it had outlived its own watchdog."""


class WorkerPool:
    """All workers of a run."""

    def __init__(self, settings: WorkerSettings, workers: int) -> None:
        """`workers` 0: tasks run in this process. Else each has a GPU of its own, where they are on GPUs.

        Raises GpuError where there are not as many, or not these.
        """
        kind = settings.device.partition(":")[0]
        gpus: Sequence[str] = [ANY] * workers
        if kind != "cpu":
            gpus = of_workers(settings.device, workers) if workers else own_device(settings.device)
            # A worker sees one GPU.
            settings = replace(settings, device=kind if workers else gpus[0])
        self._settings = replace(settings, watched=workers > 0)
        self._folder = RunFolder(settings.folder)
        self._numbers = itertools.count(1)
        self._launches: list[_Launch] = []
        self.seats: Sequence[Seat] = (
            [
                ProcessSeat(f"w{i}", kind, self._folder.output(f"w{i}"), gpu)
                for i, gpu in enumerate(gpus)
            ]
            if workers
            else [OwnSeat(kind)]
        )

    @property
    def device(self) -> str:
        """The device as the workers call it."""
        return self._settings.device

    @property
    def busy(self) -> bool:
        return bool(self._launches)

    @property
    def has_room(self) -> bool:
        return len(self._launches) < QUEUED * len(self.seats)

    def submit(
        self,
        case: VerifyCase,
        backends: tuple[BackendMeta, ...],
        identities: frozenset[str],
        until: float | None = None,
        known: Known = NOTHING_KNOWN,
        probes: frozenset[str] = frozenset(PROBES),
    ) -> None:
        """Check a case, recorded in the run folder; the outcome comes from `wait`.

        No backend is begun at or after `until` (seconds of `time.time()`); None: all are. `known` as in
        `Task`.
        """
        held = {id(seat): 0 for seat in self.seats}
        for launch in self._launches:
            held[id(launch.seat)] += 1
        seat = min(self.seats, key=lambda seat: held[id(seat)])
        self._launches.append(
            self._launch(
                seat,
                case,
                backends,
                identities,
                seat.name,
                None,
                probes=probes,
                until=until,
                known=known,
            )
        )

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

    def rest(self, name: str) -> tuple[Seat, list[Done | Lost]]:
        """The worker that writes under this name, once it has nothing to do, and all that ended by then."""
        (seat,) = (seat for seat in self.seats if seat.name == name)
        ended: list[Done | Lost] = []
        while any(launch.seat is seat for launch in self._launches):
            ended += self.wait()
        return seat, ended

    def ask(
        self,
        seat: Seat,
        backend: BackendMeta,
        case: VerifyCase,
        identities: frozenset[str],
        *,
        launch_timeout: float,
        abandoned: threading.Event,
        expendable: bool = False,
        probes: frozenset[str] = frozenset(PROBES),
        known: Known = NOTHING_KNOWN,
        linger: float = 0.0,
    ) -> Done | Lost | None:
        """Check a case on one worker and wait for it, recording nothing; None once abandoned.

        Asked again where the worker ended before it began. `expendable`: the check is likely to
        kill its process, so a child of the worker does it and an outcome `Done` has no checks.
        `linger` as in `WorkerSettings`.
        """
        outcome: Done | Lost | None = None
        for _ in range(MOST_TRIES):
            if abandoned.is_set():
                return None
            function = worker.outlive if expendable else worker.check
            launch = self._launch(
                seat,
                case,
                (backend,),
                identities,
                "",
                launch_timeout,
                function,
                probes,
                known=known,
                linger=linger,
            )
            outcome = None
            while outcome is None and not abandoned.is_set():
                wait({launch.future}, TICK)
                outcome = self._outcome(launch)
            if not isinstance(outcome, Lost) or outcome.at_work is not None:
                break
        return outcome

    def diagnose(
        self,
        seat: Seat,
        backend: BackendMeta,
        case: VerifyCase,
        *,
        launch_timeout: float,
        abandoned: threading.Event,
    ) -> tuple[tuple[Diagnosed, ...], Shown | None]:
        """The cause of what a backend does wrong on a case, as `look_and_show` gives it; empty where
        none was found, its worker was lost over it, or it was abandoned."""
        columns = frozenset[str](COLUMNS)
        outcome: Done | Lost | None = None
        for _ in range(MOST_TRIES):
            launch = self._launch(
                seat, case, (backend,), columns, "", launch_timeout, function=worker.explain
            )
            outcome = None
            while outcome is None and not abandoned.is_set():
                wait({launch.future}, TICK)
                outcome = self._outcome(launch)
            if not isinstance(outcome, Lost) or not outcome.gave_up:
                break
        return (outcome.diagnosed, outcome.shown) if isinstance(outcome, Done) else ((), None)

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
        function: Callable[[Task, WorkerSettings], Any] = worker.check,
        probes: frozenset[str] = frozenset(PROBES),
        until: float | None = None,
        known: Known = NOTHING_KNOWN,
        linger: float = 0.0,
    ) -> _Launch:
        task = Task(next(self._numbers), case, backends, identities, writer, probes, until, known)
        settings = self._settings
        timeout = settings.launch_timeout if launch_timeout is None else launch_timeout
        timeout *= heaviness(case, settings.device.partition(":")[0])
        linger = max(linger, settings.linger)
        settings = replace(settings, launch_timeout=timeout, linger=linger)
        future = seat.submit(function, task, settings)
        return _Launch(task, seat, future, settings.launch_timeout)

    def _outcome(self, launch: _Launch) -> Done | Lost | None:
        if launch.future.done():
            error = launch.future.exception()
            if error is None:
                result: list[Checked] | tuple[tuple[Diagnosed, ...], Shown | None] | int = (
                    launch.future.result()
                )
                if isinstance(result, tuple):
                    return Done(launch.task, (), *result)
                if not isinstance(result, int):
                    return Done(launch.task, tuple(result))
                survived = result == worker.SURVIVED
                return Done(launch.task, ()) if survived else self._lost(launch, result)
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
            launch.gone_since = None
            path = record_path(self._folder.in_flight, launch.task.number)
            limit = seconds_for(record.stage, launch.launch_timeout)
            if time.time() - path.stat().st_mtime > limit + GRACE:
                launch.ended = True
                os.kill(record.pid, signal.SIGKILL)
        except ProcessLookupError:
            launch.gone_since = launch.gone_since or time.monotonic()
        except FileNotFoundError:  # it ended its task this moment
            pass
        return launch.gone_since is not None and time.monotonic() - launch.gone_since > LATE

    def _lost(self, launch: _Launch, exit_code: int | None) -> Lost:
        timed_out = launch.launch_timeout if launch.ended else None
        return examine_loss(self._folder, launch.task, exit_code, timed_out)
