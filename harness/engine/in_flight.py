"""What a worker is doing this moment, on disk, so that its sudden end can be blamed exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one worker process. `backend` empty: between two checks."""

    task: int
    pid: int
    case: str
    backend: str = ""
    stage: str = ""
    probe: str = ""
    """What the stage is run for, where that is known."""
    events: str = ""
    """File that the worker writes its events to."""
    offset: int = 0
    """Bytes it held before this task."""


class Entering(Protocol):
    """To be told each stage that a backend enters, and the probe that it is run for."""

    def __call__(self, stage: str, probe: str = "") -> None: ...


class InFlightFile:
    """The worker's side: one small file, rewritten in place by one write."""

    def __init__(self, folder: Path, record: InFlight) -> None:
        self._record = record
        self._path = record_path(folder, record.task)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self.update("", "")

    @property
    def backend(self) -> str:
        return self._record.backend

    def update(self, backend: str, stage: str, probe: str = "") -> None:
        self._record = msgspec.structs.replace(
            self._record, backend=backend, stage=stage, probe=probe
        )
        # What a longer record leaves behind this line's end is not read.
        os.pwrite(self._descriptor, msgspec.json.encode(self._record) + b"\n", 0)

    def close(self) -> None:
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def record_path(folder: Path, task: int) -> Path:
    return folder / f"{task}.json"


def trace_path(folder: Path, task: int) -> Path:
    """Where the dying process leaves its traceback."""
    return folder / f"{task}.trace"


def read_in_flight(folder: Path, task: int) -> InFlight | None:
    """The record of a task; None where it was never begun or has ended."""
    try:
        line = record_path(folder, task).read_bytes().partition(b"\n")[0]
        return msgspec.json.decode(line, type=InFlight)
    except (OSError, msgspec.DecodeError):
        return None
