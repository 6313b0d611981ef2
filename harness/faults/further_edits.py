"""A defect that somebody might leave behind while writing or tuning a backend: an edit of its text."""

from __future__ import annotations

from collections.abc import Mapping

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.faults.fault import Fault
from treeproof.faults.plant import edited

SOURCES = ("further",)
"""Nobody reported these. They are kept apart from the catalog, so that what was tuned on its faults
can be scored on others."""

Edits = tuple[tuple[str, str], ...]


def defect(
    name: str,
    stage: str,
    seen: tuple[Identity, Evidence],
    *,
    says: str,
    smallest: VerifyCase,
    edits: Mapping[str, Edits],
    cause: str = "unknown",
) -> Fault:
    """One defect; `edits` has the (old, new) texts of every backend that it can be planted into."""

    def plant(backend: Backend) -> Backend:
        return edited(backend, *edits[backend.name])

    return Fault(
        family=name,
        says=says,
        sources=SOURCES,
        stage=stage,
        identity=seen[0],
        evidence=seen[1],
        cause=cause,
        smallest=smallest,
        plant=plant,
        applies=lambda backend: backend.name in edits,
    )
