"""Visibility: row i reads exactly prefix, ancestors and itself, each key once, cut by the window."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.failure import Evidence, Failure
from treeproof.contract.ledger import SlotLedger
from treeproof.properties.expected import Reads, ancestor_rows, expected_reads, read_matrix

Counts = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]

FOREIGN = -1
"""Column of a slot that the reading request does not hold."""

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


# --- declared evidence: what the tables say ------------------------------------------------------


def recover_mask(
    mask: npt.NDArray[Any],
    indptr: Sequence[int],
    mode: MaskMode,
    prefixes: Sequence[int],
    rows: Sequence[int],
) -> list[npt.NDArray[np.bool_]]:
    """The tree block of each request, (R_b, R_b), from a flat mask in its layout."""
    blocks = []
    for b, (prefix, count) in enumerate(zip(prefixes, rows, strict=True)):
        start = indptr[b]
        if mode is MaskMode.QLEN_ONLY_BITPACKING:
            width = mask.dtype.itemsize
            items = mask[start : start + count].view(np.uint8).reshape(count, width)
            bits = np.unpackbits(items, axis=1, bitorder="little")
            blocks.append(bits[:, :count].astype(bool))
        else:
            line = count + (prefix if mode is MaskMode.FULL_MASK else 0)
            cells = mask[start : start + count * line].reshape(count, line)
            blocks.append(cells[:, line - count :].astype(bool))
    return blocks


def recover_mask_prefix(
    mask: npt.NDArray[Any], indptr: Sequence[int], prefixes: Sequence[int], rows: Sequence[int]
) -> list[npt.NDArray[np.bool_]]:
    """The prefix block of each request, (R_b, P_b), of a FULL_MASK."""
    return [
        mask[indptr[b] : indptr[b] + n * (p + n)].reshape(n, p + n)[:, :p].astype(bool)
        for b, (p, n) in enumerate(zip(prefixes, rows, strict=True))
    ]


def recover_lists(
    indptr: Sequence[int], indices: Slots, start: Sequence[int] | None
) -> list[Slots]:
    """Slots that each row's list names, after the part before `start` is cut off."""
    return [
        indices[lo + (start[i] if start is not None else 0) : hi]
        for i, (lo, hi) in enumerate(itertools.pairwise(indptr))
    ]


def recover_pages(page_table: Slots, lengths: Sequence[int], page_size: int) -> list[Slots]:
    """Slots that each line of a page table (lines, pages) names."""
    found, most = [], page_table.shape[1] * page_size
    for i, (line, length) in enumerate(zip(page_table, lengths, strict=True)):
        if not 0 <= length <= most:
            raise ValueError(
                f"line {i} of page_table is {length} keys long: accepted are 0 to {most}"
            )
        column = np.arange(length)
        found.append(line[column // page_size] * page_size + column % page_size)
    return found


def recover_closure(parents: Sequence[int | None]) -> npt.NDArray[np.bool_]:
    """(rows, rows): ancestors and self of each row, by following parent rows; cycles stop."""
    closure = np.zeros((len(parents), len(parents)), dtype=bool)
    for row in range(len(parents)):
        at: int | None = row
        while at is not None and at >= 0 and not closure[row, at]:
            closure[row, at] = True
            at = parents[at]
    return closure


def recover_parents(closure: npt.NDArray[np.bool_]) -> tuple[int | None, ...]:
    """Parent rows from who reads whom: the one read that reads most of the others that are read.

    Row 0 is the root. None where a row reads no other (a window of one key hides the parent), or
    where two read equally many. What a row reads in all says nothing: a window makes it equal.
    """
    parents: list[int | None] = [-1]
    for row in range(1, len(closure)):
        read = np.flatnonzero(closure[row])
        read = read[read != row]
        shared = closure[np.ix_(read, read)].sum(axis=1)
        first = np.flatnonzero(shared == shared.max(initial=-1))
        parents.append(int(read[first[0]]) if len(first) == 1 else None)
    return tuple(parents)


def declared_reading(request: int, ledger: SlotLedger, lists: Sequence[Slots]) -> Reading:
    """A reading from the slots that each row's list names."""
    own = column_of_slot(ledger, request)
    flat = np.concatenate([*lists, np.fromiter(own, dtype=np.int64)])
    named, place = np.unique(flat, return_inverse=True)
    lengths = [len(slots) for slots in lists]
    counts = np.zeros((len(lists), len(named)))
    rows = np.repeat(np.arange(len(lists)), lengths)
    np.add.at(counts, (rows, place[: len(rows)]), 1)
    slots = tuple(int(slot) for slot in named)
    columns = tuple(own.get(slot, FOREIGN) for slot in slots)
    return Reading(request, columns, slots, counts, counts)


def column_of_slot(ledger: SlotLedger, request: int) -> Mapping[int, int]:
    return {slot: c for c, slot in enumerate(ledger.columns[request]) if slot >= 0}


# --- judging ---------------------------------------------------------------------------------------


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
    off: npt.NDArray[np.bool_] = (np.abs(reading.low - wanted) > 0.3) | (
        np.abs(reading.high - wanted) > 0.3
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
    count = f"{high:.2f} times" if abs(high - low) < 0.05 else f"{low:.2f} to {high:.2f} times"
    return Failure(
        identity="visibility", kind=kind, evidence=evidence, stage=stage,
        request=b, row=row, column=None if column == FOREIGN else column,
        expected=f"read {wanted:.0f} times", actual=f"read {count}",
        message=f"{row_name(request, row)} {_says(case, ledger, b, row, column, slot, kind, evidence)}",
    )  # fmt: skip


def row_name(request: Any, row: int) -> str:
    node = request.node_of_row[row]
    path = "→".join(str(n) for n in request.tree.path(node))
    return f"row {row} (node {node}, path {path})"


def column_name(request: Any, column: int) -> str:
    if column < request.prefix_len:
        return f"prefix key {column}"
    row = column - request.prefix_len
    return f"row {row} (node {request.node_of_row[row]})"


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
