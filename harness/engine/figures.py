"""Figures of a run that no verdict rests on."""

from __future__ import annotations

import math

from treeproof.contract.event import Acceptance, Way
from treeproof.engine.accepted import together
from treeproof.engine.summary import Run


def distinct_trees(run: Run) -> int:
    """Distinct requests that were checked, padding apart."""
    named = {tree for case in run.cases for tree in case.trees}
    return len(named) + sum(len(case.rows) for case in run.cases if not case.trees)


def margins_by_dtype(run: Run) -> dict[str, float]:
    """Worst error over bound of all backends, for each dtype in which one was measured."""
    dtypes = {
        case.case: tag.removeprefix("dtype:")
        for case in run.cases
        for tag in case.tags
        if tag.startswith("dtype:")
    }
    worst: dict[str, float] = {}
    for check in run.checks:
        dtype = dtypes.get(check.case)
        if check.margin is not None and dtype is not None:
            worst[dtype] = max(check.margin, worst.get(dtype, -math.inf))
    return dict(sorted(worst.items()))


def acceptance(run: Run) -> dict[str, dict[Way, Acceptance]]:
    """How deep walks of each backend went, and were to go."""
    found: dict[str, dict[Way, Acceptance]] = {name: {} for name in run.backends}
    for check in run.checks:
        sums = found[check.backend]
        for one in check.acceptance:
            sums[one.way] = together(sums.get(one.way), one)
    return found
