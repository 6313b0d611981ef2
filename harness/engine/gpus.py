"""Which GPUs there are, and which of them each worker is to see. Torch is not asked: it would hold them.

A GPU goes by what CUDA_VISIBLE_DEVICES calls it: a number, or the UUID of a GPU or of a MIG instance.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence

from treeproof.contract.backend import BackendError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LISTING_SECONDS = 30.0
"""nvidia-smi takes a second a GPU where no driver is kept loaded."""

DEVICE = re.compile(r"cuda:(\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,64})", re.ASCII)
"""One of them, by its place among those there are or by its UUID."""

ANY = ""
"""A GPU that nobody names: whatever torch takes."""

_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[0-9A-Za-z/-]+)\)")


class GpuError(BackendError):
    """GPUs were asked for that cannot be had; the message names what there is."""


def pins(device: str) -> tuple[str, ...]:
    """The GPUs that `device` stands for, each once: `cuda` is all of them, and `cuda:2,cuda:MIG-…` these.

    `ANY` where nobody tells which there are. Raises GpuError.
    """
    there = visible()
    if device == "cuda":
        if there == ():
            hidden = f", {VISIBLE} being {os.environ[VISIBLE]!r}" if VISIBLE in os.environ else ""
            raise GpuError(f"device cuda: there are no GPUs{hidden}")
        return (ANY,) if there is None else there
    chosen = tuple(_pin(one, there) for one in device.split(","))
    twice = [pin for pin, count in Counter(chosen).items() if count > 1]
    if twice:
        raise GpuError(
            f"device {device}: GPU {twice[0]} is named twice, and a GPU takes one worker"
        )
    return chosen


def of_workers(device: str, workers: int | None) -> tuple[str, ...]:
    """A GPU for each of so many workers; None: for as many as there are GPUs. Raises GpuError."""
    found = pins(device)
    if workers is not None and workers > len(found):
        raise GpuError(
            f"workers is {workers}: device {device} is {_counted(found)}, and a GPU takes one worker"
        )
    return found[:workers]


def anywhere(device: str) -> str:
    """The device as another machine may have it: of several, or of one by its UUID, the kind alone."""
    return device if re.fullmatch(r"cpu|cuda(:\d{1,3})?", device, re.ASCII) else "cuda"


def own_device(device: str) -> tuple[str]:
    """The device of a process that has begun already, where nothing can be hidden from torch any more.

    Raises GpuError.
    """
    if anywhere(device) != device:
        raise GpuError(f"device {device}: this process takes one GPU, such as cuda:0 (or -n 1)")
    return (device,)


def _pin(one: str, there: Sequence[str] | None) -> str:
    match = DEVICE.fullmatch(one)
    if match is None:
        raise GpuError(
            f"device {one}: accepted are cuda, cuda:0 and so on, and cuda:UUID of a GPU or MIG instance"
        )
    name = match[1]
    if there is None:
        return name
    if not name.isdecimal():
        by_uuid = [pin for pin in there if not pin.isdecimal()]
        if by_uuid and name not in by_uuid:
            raise GpuError(f"device {one}: there are {', '.join(by_uuid)}")
        return name
    if int(name) >= len(there):
        named = ", ".join(f"cuda:{i}" for i in range(len(there))) or "no GPUs"
        raise GpuError(f"device {one}: there are {named}")
    return there[int(name)]


def _counted(found: Sequence[str]) -> str:
    if found == (ANY,):
        return "one GPU as far as is known (there is no nvidia-smi)"
    return f"{len(found)} GPU{'s' if len(found) > 1 else ''}"


def visible() -> tuple[str, ...] | None:
    """Those that this process may use, in the order in which `cuda:0` and so on count them.

    None where there is no nvidia-smi to tell. Raises GpuError where the environment names one twice.
    """
    given = os.environ.get(VISIBLE)
    return _listed() if given is None else _given(given)


def _given(text: str) -> tuple[str, ...]:
    """As CUDA reads it: what comes after an entry that is none is not there."""
    found: list[str] = []
    for entry in text.split(","):
        name = entry.strip()
        if not re.fullmatch(r"\d{1,3}|(GPU|MIG)-[0-9A-Za-z/-]+", name, re.ASCII):
            break
        if name in found:
            raise GpuError(f"{VISIBLE} is {text!r}: {name} is named twice")
        found.append(name)
    return tuple(found)


@functools.cache
def _listed() -> tuple[str, ...] | None:
    """What nvidia-smi lists: MIG instances in place of a GPU that is cut into such."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    try:
        done = subprocess.run(
            [smi, "-L"], capture_output=True, text=True, timeout=LISTING_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else in_listing(done.stdout)


def in_listing(text: str) -> tuple[str, ...]:
    """The UUIDs in the output of `nvidia-smi -L`."""
    gpus: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        whole, part = _GPU.match(line), _MIG.match(line)
        if whole is not None:
            gpus.append((whole[1], []))
        elif part is not None and gpus:
            gpus[-1][1].append(part[1])
    return tuple(name for gpu, parts in gpus for name in (parts or [gpu]))
