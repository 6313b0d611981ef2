"""The smallest case that still fails in the same way, looked for in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked, Reduced
from treeproof.engine.reducer import reduce
from treeproof.testing.violated import Key

Check = Callable[[VerifyCase, frozenset[str]], Checked]
"""A case checked in these columns."""


@dataclass(frozen=True)
class Smallest:
    case: VerifyCase
    checked: Checked
    """In all columns that were asked for."""
    event: Reduced


def smallest(
    case: VerifyCase, key: Key, check: Check, columns: frozenset[str], seconds: float
) -> Smallest | None:
    """Reduce a case that failed with `key`, for some seconds; None where it does not fail again."""
    started = time.monotonic()
    evaluations = 0

    def fails(case: VerifyCase, judged: frozenset[str]) -> Checked | None:
        nonlocal evaluations
        evaluations += 1
        checked = check(case, judged)
        return checked if key in {failure.key for failure in checked.failures} else None

    def in_time() -> bool:
        return time.monotonic() - started < seconds

    whole = fails(case, columns)
    if whole is None:
        return None
    # Its own column alone is faster; some failures show only where others are judged too.
    alone = frozenset({key[0]})
    judged = alone if fails(case, alone) else columns
    reduction = reduce(case, lambda smaller: in_time() and fails(smaller, judged) is not None)
    found, complete = reduction.case, reduction.complete and in_time()
    checked = fails(found, columns)
    if checked is None:
        found, checked, complete = case, whole, False
    event = Reduced(
        backend=checked.backend, identity=key[0], kind=key[1], original=case.id, reduced=found.id,
        evaluations=evaluations, seconds=time.monotonic() - started, complete=complete,
    )  # fmt: skip
    return Smallest(found, checked, event)
