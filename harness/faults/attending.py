"""A fault of attend, planted into each representation in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.kernel_text import kernel_edited
from treeproof.faults.launched import Block, Prefix, Row, launched, relisted, remasked, reprefixed
from treeproof.faults.plant import PlantError, edited

LISTS = ("page-table", "swa-window")
"""Backends with a whole line or list a row."""

TABLES = ("direct-mask", "topology")
"""Backends that find the prefix in the token table."""

FIVE = (*TABLES, *LISTS, "cascade")

TRITON = {
    "triton-direct-mask": "direct-mask",
    "triton-topology": "topology",
    "triton-swa-window": "swa-window",
    "triton-cascade": "cascade",
    "triton-page-table": "cascade",
}
"""Triton backends, and whose representation each has: what rewrites the tables of the one does so for
both. What edits the text of the one does not: it is not found in the other's."""


def fault_of_attend(
    name: str,
    says: str,
    plants: Mapping[str, Plant],
    *,
    cause: str,
    smallest: VerifyCase,
    sources: tuple[str, ...],
    identity: Identity = "visibility",
    evidence: Evidence = "measured",
    stage: str = "attend",
    larger: str = "",
) -> Fault:
    """`name` is family.variant; `plants` says how each backend gets the fault, by its name."""
    family, _, variant = name.partition(".")

    def plant(backend: Backend) -> Backend:
        own = backend.name if backend.name in plants else TRITON[backend.name]
        return plants[own](backend)

    def applies(backend: Backend) -> bool:
        if stage not in backend.stages:
            return False
        return backend.name in plants or _of_twin(backend)

    def _of_twin(backend: Backend) -> bool:
        if TRITON.get(backend.name) not in plants:
            return False
        try:
            plant(backend)
        except PlantError:
            return False
        return True

    return Fault(
        family=family,
        variant=variant,
        says=says,
        sources=sources,
        stage=stage,
        identity=identity,
        evidence=evidence,
        cause=cause,
        smallest=smallest,
        larger=larger,
        plant=plant,
        applies=applies,
    )


def edit(*edits: tuple[str, str]) -> Plant:
    """Plants by editing the backend's text."""
    return lambda backend: edited(backend, *edits)


def kernel(module: str, *edits: tuple[str, str]) -> Plant:
    """Plants by editing a module of the kernels that a Triton backend launches."""
    return lambda backend: kernel_edited(backend, module, *edits)


def launch(change: Callable[[VerifyInput], VerifyInput]) -> Plant:
    """Plants by rewriting what attend is handed."""
    return lambda backend: launched(backend, change)


def lists(change: Callable[[Row], Row]) -> Plant:
    """Plants by rewriting the list of each row."""
    return lambda backend: relisted(backend, change)


def masks(change: Callable[[Block], Block]) -> Plant:
    """Plants by rewriting the tree block of each mask."""
    return lambda backend: remasked(backend, change)


def prefixes(change: Prefix) -> Plant:
    """Plants by rewriting the prefix of each request."""
    return lambda backend: reprefixed(backend, change)


def each(names: tuple[str, ...], plant: Plant) -> dict[str, Plant]:
    """The same plant for all of these backends."""
    return dict.fromkeys(names, plant)
