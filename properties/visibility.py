"""Visibility: row i reads exactly prefix, ancestors and itself, each key once, cut by the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Failure
from treeproof.contract.ledger import SlotLedger
from treeproof.properties.expected import Reads, ancestor_rows, expected_reads, read_matrix
from treeproof.properties.naming import column_name, row_name
from treeproof.properties.tables import Slots

Counts = npt.NDArray[np.float64]

FOREIGN = -1
"""Column of a slot that the reading request does not hold."""

MARGIN = 0.3
"""How far a measured count may be from its whole number."""

_SLOW_PATH = 4000
"""Wrong cells that are put into words; a reading that is wrong everywhere says no more."""


@dataclass(frozen=True)
class Reading:
    """How often the rows of one request read each of some slots.

    `columns[j]` is the logical column of the j-th slot in this request, or FOREIGN. `slots[j]` is
    the slot. `low`, `high` (rows, slots): smallest and largest count over query heads.
    """

    request: int
    columns: tuple[int, ...]
    slots: tuple[int, ...]
    low: Counts
    high: Counts


def declared_reading(request: int, ledger: SlotLedger, lists: Sequence[Slots]) -> Reading:
    """A reading from the slots that each row's list names."""
    own = column_of_slot(ledger, request)
    flat = np.concatenate([*lists, np.fromiter(own, dtype=np.int64)])
    named, place = np.unique(flat, return_inverse=True)
    lengths = [len(slots) for slots in lists]
    rows = np.repeat(np.arange(len(lists)), lengths)
    cells = rows * len(named) + place[: len(rows)]
    counts = np.bincount(cells, minlength=len(lists) * len(named)).astype(np.float64)
    counts = counts.reshape(len(lists), len(named))
    slots = tuple(int(slot) for slot in named)
    columns = tuple(own.get(slot, FOREIGN) for slot in slots)
    return Reading(request, columns, slots, counts, counts)


def column_of_slot(ledger: SlotLedger, request: int) -> Mapping[int, int]:
    return {slot: c for c, slot in enumerate(ledger.columns[request]) if slot >= 0}


def expected_counts(
    case: VerifyCase, request: int, columns: Sequence[int], *, cut: bool = True
) -> Counts:
    """(rows, columns) of 0 and 1: what the drawn tree says about these columns.

    Not `cut`: as it would be without the window.
    """
    req = case.requests[request]
    first, rows = read_matrix(req, case.shape.window if cut else None)
    column = np.asarray(columns, dtype=np.int64)
    wanted = np.zeros((len(first), len(column)))
    prefix = (column >= 0) & (column < req.prefix_len)
    wanted[:, prefix] = column[prefix][None, :] >= first[:, None]
    tree = column >= req.prefix_len
    wanted[:, tree] = rows[:, column[tree] - req.prefix_len]
    return wanted


def judge(
    case: VerifyCase,
    ledger: SlotLedger,
    reading: Reading,
    evidence: Evidence,
    *,
    window_free: bool = False,
    stage: str = "attend",
    limit: int = 12,
) -> list[Failure]:
    """Failures of one request's reading, at most `limit` a kind.

    `window_free`: the evidence does not say what the window cuts (a mask that is cut by the kernel
    later), so keys of the row's own path outside the window may or may not be named.
    """
    wanted = expected_counts(case, reading.request, reading.columns)
    wrong = _wrong(reading, wanted)
    if window_free:
        uncut = expected_counts(case, reading.request, reading.columns, cut=False)
        wrong &= ~((wanted == 0) & (uncut == 1))
    if not wrong.any():
        return []
    request = case.requests[reading.request]
    reads = expected_reads(request, case.shape.window)
    failures: list[Failure] = []
    seen: dict[str, int] = {}
    for row, j in np.argwhere(wrong)[:_SLOW_PATH]:
        column, slot = reading.columns[j], reading.slots[j]
        low, high = float(reading.low[row, j]), float(reading.high[row, j])
        kind = _kind(case, reads[row], reading.request, int(row), column, slot, ledger, low, high)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= limit:
            failures.append(
                _failure(
                    case,
                    ledger,
                    reading.request,
                    int(row),
                    column,
                    slot,
                    kind,
                    evidence,
                    stage,
                    wanted[row, j],
                    low,
                    high,
                )
            )
    return failures


def _wrong(reading: Reading, wanted: Counts) -> npt.NDArray[np.bool_]:
    """Counts that are not the wanted whole number."""
    off: npt.NDArray[np.bool_] = (np.abs(reading.low - wanted) > MARGIN) | (
        np.abs(reading.high - wanted) > MARGIN
    )
    return off


def wrong_places(case: VerifyCase, reading: Reading) -> set[tuple[int, int, int]]:
    """(request, row, column) of every wrong count, however many."""
    wanted = expected_counts(case, reading.request, reading.columns)
    return {
        (reading.request, int(row), reading.columns[j])
        for row, j in np.argwhere(_wrong(reading, wanted))
    }


def _on_path(case: VerifyCase, b: int, row: int, column: int) -> bool:
    """Whether the column lies on the row's path, inside the window or not."""
    prefix = case.requests[b].prefix_len
    if column < 0:
        return False
    return column < prefix or column - prefix in ancestor_rows(case.requests[b], row)


def _kind(
    case: VerifyCase,
    reads: Reads,
    b: int,
    row: int,
    column: int,
    slot: int,
    ledger: SlotLedger,
    low: float,
    high: float,
) -> str:
    if column >= 0 and reads.has(column):
        if high > 1.3 and low > 0.7:
            return "reads-twice"
        if abs(high - low) > 0.3:
            return "heads-differ"
        if low < 0.3:
            if column < reads.prefix_len:
                return "misses-prefix"
            return "misses-self" if column - reads.prefix_len == row else "misses-ancestor"
        return "wrong-weight"
    if column == FOREIGN:
        return "reads-other-request" if slot in ledger.owner else "reads-unowned"
    if _on_path(case, b, row, column):
        return "reads-outside-window"
    request = case.requests[b]
    below = row in ancestor_rows(request, column - request.prefix_len)
    return "reads-descendant" if below else "reads-sibling"


def _failure(
    case: VerifyCase,
    ledger: SlotLedger,
    b: int,
    row: int,
    column: int,
    slot: int,
    kind: str,
    evidence: Evidence,
    stage: str,
    wanted: float,
    low: float,
    high: float,
) -> Failure:
    request = case.requests[b]
    even = abs(high - low) < 0.05
    actual = _count(high) if even else f"read {low:.2f} to {high:.2f} times"
    return Failure(
        identity="visibility", kind=kind, evidence=evidence, stage=stage,
        request=b, row=row, column=None if column == FOREIGN else column,
        expected=_count(wanted), actual=actual,
        message=f"{row_name(request, row)} {_says(case, ledger, b, row, column, slot, kind, evidence)}",
    )  # fmt: skip


def _count(reads: float) -> str:
    """In words; whole numbers, and what would be written as such, without decimals."""
    nearest = round(reads)
    if abs(reads - nearest) >= 0.005:
        return f"read {reads:.2f} times"
    return {0: "not read", 1: "read once", 2: "read twice"}.get(nearest, f"read {nearest} times")


def _says(
    case: VerifyCase, ledger: SlotLedger, b: int, row: int, column: int, slot: int, kind: str,
    evidence: Evidence,
) -> str:  # fmt: skip
    request = case.requests[b]
    verb = "is told to read" if evidence == "declared" else "reads"
    if kind == "reads-other-request":
        owner, other = ledger.owner[slot]
        return f"{verb} {column_name(case.requests[owner], other)} of request {owner}"
    if kind == "reads-unowned":
        return f"{verb} slot {slot}, which no request holds"
    name = column_name(request, column)
    return {
        "reads-sibling": f"{verb} {name}, which is not an ancestor",
        "reads-descendant": f"{verb} {name}, its own descendant",
        "reads-outside-window": f"{verb} {name}, outside its window of {case.shape.window} keys",
        "reads-twice": f"{verb} {name} more than once",
        "heads-differ": f"{verb} {name} in some heads and not in others",
        "misses-prefix": f"does not read {name}",
        "misses-ancestor": f"does not read {name}, its ancestor",
        "misses-self": "does not read itself",
        "wrong-weight": f"{verb} {name} with a weight that is no whole count",
    }[kind]
