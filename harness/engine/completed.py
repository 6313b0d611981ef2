"""What counts as checked, and which of the shapes that were given were not."""

from __future__ import annotations

from collections.abc import Iterable

from treeproof.contract.event import CaseDrawn, Checked

COMPLETED = ("pass", "fail", "tie")
SAVED = "saved-"
"""Begins the units of cases that are replayed from an earlier run."""


def unchecked_shapes(cases: Iterable[CaseDrawn], checks: Iterable[Checked]) -> list[str]:
    """Given trees that no backend was judged on, at no prefix length, in words."""
    judged = {
        check.case for check in checks if any(cell.status in COMPLETED for cell in check.cells)
    }
    tried: dict[str, bool] = {}
    for case in cases:
        if not case.unit.startswith(SAVED):
            tried[case.unit] = tried.get(case.unit, False) or case.case in judged
    return [f"{unit} was checked on no backend" for unit, done in tried.items() if not done]
