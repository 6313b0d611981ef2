"""Memory that a process holds, read between calls, and whether it grows with each of them.

What is kept of every call grows without an end; what fills, a cache of compiled kernels, a workspace, an
allocator's pool, comes to an end of it. So a window of calls in which nothing was added settles it, and
only growth in one window after another, by about as much a call in each, is a leak.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch._C._autograd import _profiler_enabled

SETTLING = 8
"""Calls before the first reading. glibc takes seven freed blocks of a size for used still, and hands them
out first."""
WINDOWS = (8, 8, 8, 8, 16, 32, 64, 128, 256)
"""Calls between two readings. A cache that takes in something new with each of 400 calls of one case and
is full then, grows half as fast in the last window as before."""
UNEVEN = 0.5
"""Least growth a call over the largest, of all windows but the first."""
FIRST = 3
"""Windows in which blocks that were freed before are handed out again, which is no growth."""
ENOUGH, AT_LEAST = 4 << 30, 32
"""Bytes after which no more is asked for, and calls that it takes: a machine does not have any amount."""
RESTING = 1 / 8
"""Of the time that the calls took: what another process takes as fast as they do shows in a part of it."""

_STATM = Path("/proc/self/statm")


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


@dataclass(frozen=True)
class Meter:
    """One kind of memory. `read` gives bytes; `least` bytes more a call are growth, and less is noise."""

    name: str
    read: Callable[[], int]
    least: int


@dataclass(frozen=True)
class Leak:
    """Memory `name` grew by `bytes_a_call` over so many `calls`."""

    name: str
    bytes_a_call: float
    calls: int


def meters(device: torch.device) -> tuple[Meter, ...]:
    """What can be read here, the most telling first; nothing at all on a CPU outside Linux."""
    found = []
    if device.type == "cuda":
        # Torch hands out 512 bytes at least, and the driver 2 MiB.
        found.append(
            Meter("device memory from torch", lambda: torch.cuda.memory_allocated(device), 512)
        )
        found.append(Meter("device memory beside torch", lambda: _beside_torch(device), 1 << 18))
    if _mallinfo() is not None:
        found.append(Meter("memory from malloc", _in_use, 64))
    if _STATM.exists():
        # Whole pages, and what the allocator has not given back yet.
        found.append(Meter("resident memory", _resident, 512))
    return tuple(found)


def leak(
    call: Callable[[], object], device: torch.device, unasked: Collection[str] = ()
) -> Leak | None:
    """What grows with each call, if anything does but the memory of `unasked` names. Memory that another
    process takes of the same device is told from it by a rest, in which nothing is called and nothing may
    grow."""
    suspects = {meter.name: meter for meter in meters(device) if meter.name not in unasked}
    if not suspects or _profiler_enabled():  # a profile grows with each call, too
        return None
    with _only_new_garbage():
        for _ in range(SETTLING):
            call()
        first = last = _read(suspects, device)
        rates: dict[str, list[float]] = {name: [] for name in suspects}
        start, calls = time.perf_counter(), 0
        for size in WINDOWS:
            for _ in range(size):
                call()
            calls += size
            now = _read(suspects, device)
            for name in suspects:
                rates[name].append((now[name] - last[name]) / size)
            suspects = {n: m for n, m in suspects.items() if _grows(rates[n], m.least)}
            last = now
            if not suspects:
                return None
            grown = max(now[name] - first[name] for name in suspects)
            if grown > ENOUGH and calls >= AT_LEAST:
                break
        time.sleep(RESTING * (time.perf_counter() - start))
        at_rest = _read(suspects, device)
    for name, meter in suspects.items():
        if at_rest[name] - last[name] < meter.least * WINDOWS[0]:
            return Leak(name, (last[name] - first[name]) / calls, calls)
    return None


def _grows(rates: list[float], least: int) -> bool:
    """So far, in every window and evenly."""
    later = rates[FIRST:] or rates[-1:]
    return min(rates) >= least and min(later) >= UNEVEN * max(later)


def _read(of: Mapping[str, Meter], device: torch.device) -> dict[str, int]:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {name: meter.read() for name, meter in of.items()}


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """What is there already is not looked through by each collection, which would take long."""
    frozen = gc.get_freeze_count() == 0
    if frozen:
        gc.freeze()
    try:
        yield
    finally:
        if frozen:
            gc.unfreeze()


@cache
def _mallinfo() -> Callable[[], _Mallinfo] | None:
    """None where malloc is not glibc's, or older than its version 2.33."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo
    return function


def _in_use() -> int:
    """Bytes handed out by malloc and not freed, in all arenas and in mappings of their own."""
    function = _mallinfo()
    assert function is not None
    info = function()
    return int(info.uordblks) + int(info.hblkhd)


def _resident() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _beside_torch(device: torch.device) -> int:
    """Of the whole device, whoever took it."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
