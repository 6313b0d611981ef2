"""Defects beside the catalog: what a diagnosis that was tuned on the catalog is scored on."""

from __future__ import annotations

from treeproof.faults import further_attends, further_builds, further_rounds
from treeproof.faults.fault import Fault

FURTHER: tuple[Fault, ...] = (
    *further_builds.DEFECTS,
    *further_attends.DEFECTS,
    *further_rounds.DEFECTS,
)
