"""What counts as checked, and which of the shapes that were given were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from treeproof.contract.event import CaseDrawn, Checked

COMPLETED = ("pass", "fail", "tie")
SAVED = "saved-"
"""Begins the units of cases that are replayed from an earlier run."""
REDUCED_UNIT = "reduced"
"""Unit of the cases that the reducer made: shown, and counted in no figure."""
_NAMED = 3


def evidence(column: Counter[str]) -> int:
    """Cells, of all with each status, that say something of the backend; a tie does not."""
    return column["pass"] + column["fail"] + column["known"]


def unchecked_shapes(
    cases: Iterable[CaseDrawn], checks: Iterable[Checked], backends: Sequence[str]
) -> list[str]:
    """Given trees, in words, that a backend was judged on at no prefix length.

    `backends` are those that were judged at all: of the others there is nothing more to say.
    """
    judged: dict[str, set[str]] = {}
    for check in checks:
        if any(cell.status in COMPLETED for cell in check.cells):
            judged.setdefault(check.case, set()).add(check.backend)
    tried: dict[str, set[str]] = {}
    for case in cases:
        if not case.unit.startswith(SAVED):
            tried.setdefault(case.unit, set()).update(judged.get(case.case, ()))
    reasons = [f"{unit} was checked on no backend" for unit, by in tried.items() if not by]
    for backend in backends:
        left = [unit for unit, by in tried.items() if by and backend not in by]
        more = f" and {len(left) - _NAMED} more" if left[_NAMED:] else ""
        if left:
            reasons.append(
                f"backend {backend} checked {len(tried) - len(left)} of {len(tried)} shapes, not "
                f"{', '.join(left[:_NAMED])}{more}"
            )
    return reasons
