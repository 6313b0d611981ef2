"""What the calls of a backend take by themselves, and where the harness waits for a device."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from typing import Any

import torch

from treeproof.contract.registry import Backend

STAGES = ("build", "plan", "attend")


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


class Alone:
    """A backend whose calls begin on a device at rest and are waited for.

    `host`: seconds until calls return, planning in Python and waiting for own kernels included.
    `seconds`: until the device has done what they asked for.
    """

    def __init__(self, backend: Backend, device: str) -> None:
        self.host, self.seconds, self._device = 0.0, 0.0, device
        self.backend = with_fields(backend, make=lambda: self._wrapped(backend.make()))

    def _wrapped(self, instance: Any) -> Any:
        for stage in STAGES:
            call = getattr(instance, stage, None)
            if call is not None:
                setattr(instance, stage, self._timed(call))
        return instance

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            synchronise(self._device)
            start = time.perf_counter()
            result = call(*arguments)
            self.host += time.perf_counter() - start
            synchronise(self._device)
            self.seconds += time.perf_counter() - start
            return result

        return timed


@contextmanager
def own_waits() -> Iterator[list[str]]:
    """Places in treeproof, outside oracle and backends, where the host waits for CUDA meanwhile."""
    places: list[str] = []

    def waits(*_: Any, **__: Any) -> None:
        files = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack()]
        ours = [name for name in files if "treeproof/" in name]
        if ours and not any(
            f"treeproof/{room}/" in n for n in ours for room in ("oracles", "backends")
        ):
            places.append(ours[-1].rpartition("treeproof/")[2])

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = waits
            yield places
    finally:
        torch.cuda.set_sync_debug_mode("default")
