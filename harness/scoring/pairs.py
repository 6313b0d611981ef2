"""Which fault goes into which backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treeproof.contract.registry import Backend, load
from treeproof.faults.fault import Fault

BESIDE = ("reference", "sdpa-direct-mask")
"""What no other backend of ours has: some stages, and a launch by mask and positions that can be
captured. What others have is looked for there."""

SUBJECTS = (
    *("direct-mask", "cascade", "page-table", "swa-window", "topology", "tiny-engine"),
    *BESIDE,
)
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
        able = [name for name in able_to_have(fault, loaded) if _shows(fault, loaded[name])]
        if able:
            chosen = able if every_backend else [able[turn % len(able)]]
            found += [Pair(fault, name) for name in chosen]
    return found


def able_to_have(fault: Fault, backends: Mapping[str, Backend]) -> list[str]:
    """The backends that a fault can be planted into, those of `BESIDE` where no other can have it."""
    able = [name for name, backend in backends.items() if fault.applies(backend)]
    return [name for name in able if name not in BESIDE] or able


def _shows(fault: Fault, backend: Backend) -> bool:
    """Whether it shows on some case that the backend takes."""
    return backend.capabilities.refusal(fault.smallest, "cpu") is None
