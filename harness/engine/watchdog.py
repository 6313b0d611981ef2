"""Ends a worker process whose check makes no progress, and leaves a traceback behind."""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from treeproof.contract.case import VerifyCase

PATIENCE = 300.0
"""Seconds for what is not the kernel's: importing a backend's packages, and the oracle."""

REARM = 0.1
"""Share of its time that a stage may lose to a watchdog armed for the stage before it."""


ORDINARY = {"cpu": 1e10, "cuda": 1e13}
"""Multiply-adds of a launch that has the time which is set, and no more: a minute's work for the slowest
kernels that are right, an interpreted one and one on an old GPU."""


def heaviness(case: VerifyCase, device_kind: str) -> float:
    """By how much the time of a stage is drawn out: 1, or as much as a launch has more work than others."""
    return max(1.0, work_of(case) / ORDINARY[device_kind])


def work_of(case: VerifyCase) -> int:
    """Multiply-adds of its attention, hidden keys among them."""
    shape = case.shape
    keys = sum(r.num_rows * (r.prefix_len + r.num_rows) for r in case.requests)
    return keys * shape.num_q_heads * (shape.head_dim + shape.v_head_dim)


def seconds_for(stage: str, launch_timeout: float) -> float:
    """How long a stage may take before its worker counts as hung."""
    return max(launch_timeout, PATIENCE) if stage in ("load", "oracle") else launch_timeout


class Watch:
    """Armed for each stage; fires even while C code holds the interpreter."""

    def __init__(self, seconds: float, trace: IO[bytes] | None) -> None:
        self._seconds = seconds
        self._trace = trace
        self._armed = -math.inf
        self._limit = 0.0

    def arm(self, stage: str) -> None:
        """Begin to count anew. Arming costs a thread, so it is not done for every launch."""
        if self._trace is None:
            return
        now, limit = time.monotonic(), seconds_for(stage, self._seconds)
        if limit != self._limit or now - self._armed > REARM * limit:
            self._armed, self._limit = now, limit
            faulthandler.dump_traceback_later(limit, exit=True, file=self._trace)

    def disarm(self) -> None:
        self._armed = -math.inf
        if self._trace is not None:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def watchdog(seconds: float | None, path: Path) -> Iterator[Watch]:
    """A watch over stages of `seconds` each; None watches nothing, in a process not ours to end.

    A hang and a fatal signal write their traceback to `path`, which is gone where neither came.
    """
    if seconds is None:
        yield Watch(math.inf, None)
        return
    with path.open("wb") as trace:
        faulthandler.enable(trace, all_threads=False)
        watch = Watch(seconds, trace)
        try:
            yield watch
        finally:
            watch.disarm()
            faulthandler.disable()
    path.unlink(missing_ok=True)
