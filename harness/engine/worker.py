"""The process side: everything that touches a backend happens here, and may die here."""

from __future__ import annotations

import faulthandler
import importlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.registry import BackendError, BackendUnavailable, load
from treeproof.engine.in_flight import InFlight, InFlightFile, trace_path
from treeproof.engine.run_folder import BackendMeta, RunFolder, append_event

REARM = 0.1
"""Share of its time that a stage may lose to a watchdog armed for the stage before it."""


class InternalError(Exception):
    """treeproof itself failed; the message is its traceback. Exit code 4."""


@dataclass(frozen=True)
class WorkerSettings:
    """What stays the same for all tasks of a run.

    `checker` is the module that holds `check_case` and `CheckOptions`. `watched`: the process is
    ours to end, so a stage that takes longer than `launch_timeout` seconds ends it.
    """

    folder: Path
    checker: str
    device: str
    profile: str
    launch_timeout: float
    watched: bool


@dataclass(frozen=True)
class Task:
    """One case on some backends. `writer` names the events file; empty: nothing is recorded."""

    number: int
    case: VerifyCase
    backends: tuple[BackendMeta, ...]
    identities: frozenset[str]
    writer: str = ""


def initialize(device_kind: str) -> None:
    """Set up a worker process, before anything imports torch or triton."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if device_kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def probe(reference: str) -> BackendMeta:
    """Load a backend. Raises BackendError where there is no such thing."""
    try:
        backend = load(reference)
    except BackendUnavailable as error:
        return BackendMeta(reference=reference, name=reference, unavailable=str(error))
    except BackendError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise BackendError(
            f"backend {reference} fails on import: {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})"
        ) from None
    return BackendMeta(reference=reference, name=backend.name, stages=tuple(sorted(backend.stages)))


def device_name(device: str) -> str:
    """The device in words. Raises BackendError where it is not there."""
    import torch

    if not torch.cuda.is_available():
        raise BackendError(f"device {device}: torch {torch.__version__} sees no CUDA device")
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise BackendError(f"device {device}: there are {torch.cuda.device_count()} CUDA devices")
    return torch.cuda.get_device_name(index)


def check(task: Task, settings: WorkerSettings) -> list[Checked]:
    """Check the case on its backends, one after another, so that its oracle runs once.

    Raises InternalError for whatever else happens: exceptions travel badly between processes.
    """
    folder = RunFolder(settings.folder)
    events = folder.events_path(f"{task.writer}-{os.getpid()}")
    record = InFlight(
        task=task.number,
        pid=os.getpid(),
        case=task.case.id,
        events=events.name if task.writer else "",
        offset=events.stat().st_size if events.exists() else 0,
    )
    in_flight = InFlightFile(folder.in_flight, record)
    try:
        with _watchdog(trace_path(folder.in_flight, task.number), settings) as watch:
            return [
                _check_one(task, meta, settings, in_flight, watch, events) for meta in task.backends
            ]
    except (Exception, SystemExit):
        at = f"checking {in_flight.backend or 'nothing yet'} on case {task.case.id}"
        raise InternalError(f"{at}: {traceback.format_exc()}") from None
    finally:
        in_flight.close()


def _check_one(
    task: Task,
    meta: BackendMeta,
    settings: WorkerSettings,
    in_flight: InFlightFile,
    watch: _Watch,
    events: Path,
) -> Checked:
    def enter(stage: str) -> None:
        in_flight.update(meta.name, stage)
        watch.arm()

    enter("load")
    checker: Any = importlib.import_module(settings.checker)
    if settings.watched and settings.device == "cpu" and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    options = checker.CheckOptions(
        device=settings.device,
        profile=settings.profile,
        identities=task.identities,
        in_flight=enter,
    )
    checked: Checked = checker.check_case(task.case, load(meta.reference), options)
    watch.disarm()
    if task.writer:
        append_event(events, checked)
    in_flight.update("", "")
    return checked


class _Watch:
    """Ends this process with a traceback when a stage outlives its time, even inside C code."""

    def __init__(self, seconds: float, trace: IO[bytes] | None) -> None:
        self._seconds = seconds
        self._trace = trace
        self._armed = -math.inf

    def arm(self) -> None:
        """Begin to count anew. Arming costs a thread, so it is not done for every launch."""
        now = time.monotonic()
        if self._trace is not None and now - self._armed > REARM * self._seconds:
            self._armed = now
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._trace)

    def disarm(self) -> None:
        self._armed = -math.inf
        if self._trace is not None:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _watchdog(path: Path, settings: WorkerSettings) -> Iterator[_Watch]:
    if not settings.watched:
        yield _Watch(settings.launch_timeout, None)
        return
    with path.open("wb") as trace:
        faulthandler.enable(trace, all_threads=False)
        watch = _Watch(settings.launch_timeout, trace)
        try:
            yield watch
        finally:
            watch.disarm()
            faulthandler.disable()
    path.unlink(missing_ok=True)
