"""What belongs to a whole process, and a backend may change under those that run in it after: put back.

Not all there is: a function of torch that a backend puts another one in place of stays so.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

_STREAMS = {1: "stdout", 2: "stderr"}

File = tuple[int, int]
"""Device and inode."""

Limit = tuple[int, int]
"""Soft and hard."""

_LIMITS = {
    name: getattr(resource, f"RLIMIT_{name}")
    for name in ("NOFILE", "NPROC", "AS", "DATA", "STACK", "FSIZE", "CPU")
}

_spare: dict[int, tuple[File, int]] = {}
"""Of each stream, the file that it went to last, and a descriptor of it that nobody else knows."""


@dataclass(frozen=True)
class ProcessState:
    """The current folder, where output goes, what the system lets it have, and defaults of torch, where
    that has been imported."""

    folder: str | None
    """None where it has been deleted."""
    files: dict[int, File | None]
    """None: closed, as a service may have it."""
    open: frozenset[int]
    """Those whose object of Python's can be printed to."""
    defaults: dict[str, Any]
    limits: dict[str, Limit]

    @classmethod
    def now(cls) -> ProcessState:
        files = {descriptor: _file(descriptor) for descriptor in _STREAMS}
        for descriptor, file in files.items():
            _keep(descriptor, file)
        return cls(
            folder=_folder(),
            files=files,
            open=_open(),
            defaults={default.name: default.read() for default in _defaults()},
            limits={name: resource.getrlimit(which) for name, which in _LIMITS.items()},
        )

    def restore(self) -> list[str]:
        """Put back what is another now; what no guest should have changed, in words."""
        changed = []
        for default in _defaults():
            # Where torch was imported in between, it was as torch has it.
            was, found = self.defaults.get(default.name, default.own), default.read()
            if found != was:
                default.put(was)
                if default.told:
                    changed.append(f"{default.name} is {found}, and was {was}")
        if self.folder is not None and _folder() != self.folder:
            with suppress(OSError):
                os.chdir(self.folder)
                changed.append("the current folder is another")
        for descriptor, file in self.files.items():
            if file is not None and _file(descriptor) != file:
                os.dup2(_spare[descriptor][1], descriptor)
                changed.append(f"{_STREAMS[descriptor]} is closed, or leads elsewhere")
        for descriptor in sorted(self.open - _open()):
            stream = os.fdopen(descriptor, "w", closefd=False)
            setattr(sys, _STREAMS[descriptor], stream)
            changed.append(f"sys.{_STREAMS[descriptor]} is closed")
        for name, was in self.limits.items():
            found = resource.getrlimit(_LIMITS[name])
            if _size(found[0]) < _size(was[0]):  # a higher one harms nobody
                hard = min(was[1], found[1], key=_size)  # which only root can raise
                resource.setrlimit(_LIMITS[name], (min(was[0], hard, key=_size), hard))
                changed.append(f"RLIMIT_{name} is {found[0]}, and was {was[0]}")
        return changed


@dataclass(frozen=True)
class _Default:
    """One of torch's: how it is read and put back, and what it is when torch is imported."""

    name: str
    read: Callable[[], Any]
    put: Callable[[Any], None]
    own: Any
    told: bool = True
    """Nobody who means well leaves it changed."""


@contextmanager
def restored() -> Iterator[None]:
    """What is done inside changes nothing of it for good."""
    state = ProcessState.now()
    try:
        yield
    finally:
        state.restore()


def _size(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _open() -> frozenset[int]:
    streams = ((descriptor, getattr(sys, name)) for descriptor, name in _STREAMS.items())
    return frozenset(
        d for d, one in streams if one is not None and not getattr(one, "closed", False)
    )


def _file(descriptor: int) -> File | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _keep(descriptor: int, file: File | None) -> None:
    known = _spare.get(descriptor)
    if file is None or (known is not None and known[0] == file):
        return
    if known is not None:
        os.close(known[1])
    _spare[descriptor] = file, os.dup(descriptor)


def _defaults() -> tuple[_Default, ...]:
    """Of torch."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # it is still being imported
        return ()
    return _of_torch()


@cache
def _of_torch() -> tuple[_Default, ...]:
    torch: Any = sys.modules["torch"]

    def put_device(was: str) -> None:
        # Without one, new tensors need no mode that says where they go.
        torch.set_default_device(None if was == "cpu" else was)

    modes = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    return (
        _Default(
            "torch's default dtype",
            torch.get_default_dtype,
            torch.set_default_dtype,
            torch.float32,
        ),
        _Default("torch's default device", lambda: str(torch.empty(0).device), put_device, "cpu"),
        _Default("torch's deterministic mode", *modes, 0, told=False),
    )
