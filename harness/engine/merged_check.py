"""One backend's verdicts on one case, where several runs have them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treeproof.contract.event import Checked
from treeproof.contract.failure import Cell, Failure
from treeproof.engine.completed import COMPLETED

_WORST_FIRST = ("fail", "tie", "pass", "unsupported", "unavailable", "not-checked")


def stands(check: Checked) -> bool:
    """Whether the backend was judged at all."""
    return any(cell.status in COMPLETED for cell in check.cells)


def same_verdicts(one: Checked, other: Checked) -> bool:
    """Whether both judge alike, whatever they say in words."""
    return _verdicts(one) == _verdicts(other)


def _verdicts(check: Checked) -> tuple[frozenset[object], frozenset[object]]:
    cells = frozenset((c.identity, c.evidence, c.stage, c.status) for c in check.cells)
    return cells, frozenset(failure.key for failure in check.failures)


def combined(checks: Sequence[Checked]) -> Checked:
    """All of them as one: of each verdict the worst, every failure, the largest margins."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for cell in (cell for check in checks for cell in check.cells):
        place = (cell.identity, cell.evidence, cell.stage)
        known = cells.setdefault(place, cell)
        if _WORST_FIRST.index(cell.status) < _WORST_FIRST.index(known.status):
            cells[place] = cell
    failures: list[Failure] = []
    for check in checks:
        known_keys = {failure.key for failure in failures}
        failures += [f for f in check.failures if f.key not in known_keys]
    first = next((check for check in checks if check.failures), checks[0])
    return msgspec.structs.replace(
        first,
        cells=tuple(cells.values()),
        failures=tuple(failures),
        margin=max((c.margin for c in checks if c.margin is not None), default=None),
        margin_rest=max((c.margin_rest for c in checks if c.margin_rest is not None), default=None),
        kernels=tuple(dict.fromkeys(kernel for check in checks for kernel in check.kernels)),
    )
