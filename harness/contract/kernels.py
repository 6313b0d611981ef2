"""The kernels that a backend says its attend launches, and those that were seen to run."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

Mode = Literal["compiled", "interpreted", "eager"]

_SHOWN = 72


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, or operator of torch, that a launch of attend ran."""

    name: str
    mode: Mode
    on: str
    """Compiled: the device's compute capability, `sm_90`. Interpreted: the release of Triton.
    Eager: the release of torch, whose operator it is."""

    @property
    def shown(self) -> str:
        """The name as people read it; those of templates run to thousands of characters."""
        name = self.name.removeprefix("void ")
        return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"


def matches(named: str, kernel: str) -> bool:
    """Whether a kernel has this name, an fnmatch pattern or several with `|` between them."""
    return any(fnmatchcase(kernel, pattern.strip()) for pattern in named.split("|"))


def absent(named: Iterable[str], ran: Iterable[Kernel]) -> list[str]:
    """Names that no kernel has."""
    names = {kernel.name for kernel in ran}
    return sorted(one for one in named if not any(matches(one, name) for name in names))


def present(named: Iterable[str], ran: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Kernels that have one of the names, each once, in the order of their names."""
    wanted = tuple(named)
    found = {kernel for kernel in ran if any(matches(one, kernel.name) for one in wanted)}
    return tuple(sorted(found, key=lambda kernel: (kernel.name, kernel.mode)))
