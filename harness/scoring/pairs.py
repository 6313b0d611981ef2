"""Which fault goes into which backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treeproof.contract.registry import Backend, load
from treeproof.faults.fault import Fault

SUBJECTS = ("direct-mask", "cascade", "page-table", "swa-window", "topology", "tiny-engine")
"""Our own backends, which are right: whatever is wrong with them was planted.

So are the Triton ones, which are asked for by name: they need Triton, and minutes for each of these'
seconds."""


@dataclass(frozen=True)
class Pair:
    """A fault, and a backend that it can be planted into."""

    fault: Fault
    backend: str


def pairs(
    faults: Iterable[Fault], backends: Sequence[str] = SUBJECTS, *, every_backend: bool = False
) -> list[Pair]:
    """Every fault with one of the backends that can have it, in turn; or with every such backend."""
    found: list[Pair] = []
    loaded = {name: load(name) for name in backends}
    for turn, fault in enumerate(faults):
        able = [name for name, backend in loaded.items() if _fits(fault, backend)]
        if able:
            chosen = able if every_backend else [able[turn % len(able)]]
            found += [Pair(fault, name) for name in chosen]
    return found


def _fits(fault: Fault, backend: Backend) -> bool:
    """Whether it can be planted there, and shows on some case that the backend takes."""
    return fault.applies(backend) and backend.capabilities.refusal(fault.smallest, "cpu") is None
