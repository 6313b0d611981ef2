"""One worker process at a time, replaced when it ends; or this very process, for debuggers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pebble import ProcessPool

from treeproof.engine.gpus import ANY
from treeproof.engine.worker import initialize


class Seat(Protocol):
    name: str

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...

    def renew(self) -> None:
        """Go on in a fresh process. Nothing may be under way."""

    def stop(self) -> None: ...


class ProcessSeat:
    """A pool of one process. Tasks queue up behind one another and outlive the process.

    One pool a process, not one for all: workers then share no lock that the dead could hold.
    """

    def __init__(self, name: str, device_kind: str, output: Path, gpu: str = ANY) -> None:
        """`output`: the file for what the process prints. `gpu`: the only one that it sees."""
        self.name = name
        self._gpu = gpu
        self._device_kind = device_kind
        self._output = output
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=1,
            initializer=initialize,
            initargs=(self._device_kind, self._output, self._gpu),
            context=_SpawnWithoutMain(),
        )

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if not self._pool.active:  # its process died between two tasks
            self.renew()
        try:
            future: Future[Any] = self._pool.schedule(function, args=arguments)
        except RuntimeError as error:  # it broke just now
            future = Future()
            future.set_exception(BrokenProcessPool(str(error)))
        return future

    def renew(self) -> None:
        self._end()
        self._pool = self._new_pool()

    def _end(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()

    def stop(self) -> None:
        self._end()
        if self._output.exists() and not self._output.stat().st_size:
            self._output.unlink()
        with suppress(OSError):  # where nobody printed, nor began a run, no folder stays behind
            self._output.parent.rmdir()
            self._output.parent.parent.rmdir()


class OwnSeat:
    """Runs every task at once in this process: breakpoints work, and a crash ends everything."""

    def __init__(self, device_kind: str) -> None:
        self.name = f"own-{os.getpid()}"
        if device_kind == "cpu" and "triton" not in sys.modules:
            os.environ.setdefault("TRITON_INTERPRET", "1")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def renew(self) -> None:
        """There is no other process."""

    def stop(self) -> None:
        pass


class _SpawnedProcess(SpawnProcess):
    """A spawned process that does not import the caller's main module.

    Tasks never live there. So a script that calls treeproof needs no `__main__` guard, and what it
    does at import is done once.
    """

    _lock = threading.Lock()

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with _SpawnedProcess._lock:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = main


class _SpawnWithoutMain(SpawnContext):
    Process = _SpawnedProcess
