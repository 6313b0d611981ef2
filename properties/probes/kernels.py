"""Which kernels a call runs: Triton's interpreter tells its own, torch's profiler all others.

The profiler names every CUDA kernel, whoever wrote and compiled it, and every operator of torch. A
kernel in Triton's interpreter is a Python function to it, so that is watched by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._C._autograd import DeviceType, _profiler_enabled
from torch.autograd.profiler import profile

from treeproof.contract.kernels import Kernel

T = TypeVar("T")

_NO_KERNELS = ("Memcpy", "Memset")
"""What a device does besides kernels; the profiler lists it among them."""

_RUNTIME = ("cuda", "cuLaunch", "cuModule", "cuKernel")
"""Calls of the CUDA runtime and driver, which the profiler lists among torch's operators."""


@dataclass(frozen=True)
class Ran:
    """What a call ran, the longest first; `unseen` says why all or some of it was not seen."""

    kernels: tuple[Kernel, ...]
    unseen: str = ""


def interpreted(call: Callable[[], T]) -> tuple[T, Ran]:
    """What the call gives, and the Triton kernels that it runs in the interpreter; no others."""
    with _interpreting() as names:
        result = call()
    return result, Ran(_interpreted(names))


def profiled(call: Callable[[], T], device: torch.device) -> tuple[T, Ran]:
    """What the call gives, and everything that it runs.

    Where the profiler cannot be had (another one is at work, CUPTI is missing), `unseen` says so; what
    the call itself raises is raised.
    """
    # Above all levels there are: each start and stop is announced on standard error otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    on_cuda = device.type == "cuda"
    with _interpreting() as names:
        if _profiler_enabled():  # a second one would take the place of the first
            return call(), Ran(_interpreted(names), "another profile is being recorded")
        try:
            # `torch.profiler` is the same and more, and its first use imports a compiler.
            profiler: Any = profile(use_device="cuda" if on_cuda else None, use_kineto=True)
            profiler.__enter__()
        except (RuntimeError, AssertionError) as error:
            unseen = f"torch's profiler does not start: {_line(error)}"
            return call(), Ran(_interpreted(names), unseen)
        try:
            result = call()
        finally:
            unseen = _stopped(profiler)
    kernels = () if unseen else _recorded(profiler, device)
    if not unseen and not any(k.mode == ("compiled" if on_cuda else "eager") for k in kernels):
        what = "CUDA kernel (is CUPTI there?)" if on_cuda else "operator"
        unseen = f"torch's profiler recorded no {what}"
    return result, Ran((*_interpreted(names), *kernels), unseen)


@contextmanager
def _interpreting() -> Iterator[list[str]]:
    """Names of the kernels that Triton's interpreter runs meanwhile; none where it is not loaded."""
    kind: Any = getattr(sys.modules.get("triton.runtime.interpreter"), "InterpretedFunction", None)
    names: list[str] = []
    if kind is None:
        yield names
        return
    right = kind.run

    def run(function: Any, *arguments: Any, warmup: bool = False, **options: Any) -> Any:
        if not warmup:
            names.append(function.fn.__name__)
        return right(function, *arguments, warmup=warmup, **options)

    kind.run = run
    try:
        yield names
    finally:
        kind.run = right


def _interpreted(names: list[str]) -> tuple[Kernel, ...]:
    on = f"triton {getattr(sys.modules.get('triton'), '__version__', '')}"
    return tuple(Kernel(name=name, mode="interpreted", on=on) for name in dict.fromkeys(names))


def _stopped(profiler: Any) -> str:
    """End the recording; what hindered it, if something did."""
    try:
        profiler.__exit__(None, None, None)
    except RuntimeError as error:
        return f"torch's profiler does not stop: {_line(error)}"
    return ""


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _recorded(profiler: Any, device: torch.device) -> tuple[Kernel, ...]:
    """Kernels of the device, then operators; of each kind the longest first."""
    compiled: dict[str, int] = {}
    eager: dict[str, int] = {}
    # As they were recorded: `function_events` makes a tree of them, which takes twenty times as long.
    for event in profiler.kineto_results.events():
        if event.is_user_annotation():
            continue  # a range that somebody drew around kernels
        name, duration = event.name(), event.duration_ns()
        if event.device_type() == DeviceType.CUDA:
            if not name.startswith(_NO_KERNELS):
                compiled[name] = compiled.get(name, 0) + duration
        elif not name.startswith(_RUNTIME):
            eager[name] = eager.get(name, 0) + duration
    torch_release = f"torch {torch.__version__.partition('+')[0]}"
    kernels = [Kernel(name=n, mode="eager", on=torch_release) for n in _longest(eager)]
    if compiled:
        major, minor = torch.cuda.get_device_capability(device)
        on = f"sm_{major}{minor}"
        kernels = [*(Kernel(name=n, mode="compiled", on=on) for n in _longest(compiled)), *kernels]
    return tuple(kernels)


def _longest(times: dict[str, int]) -> list[str]:
    return sorted(times, key=lambda name: -times[name])
