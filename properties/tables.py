"""Tables decoded: what a mask, a list of slots, a page table or parent rows say, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import MaskMode

Slots = npt.NDArray[np.int64]


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
    """Slots that each row's list names, after the part before `start` is cut off.

    Raises ValueError where a list ends outside `indices`.
    """
    for i, end in enumerate(indptr):
        if not 0 <= end <= len(indices):
            raise ValueError(
                f"kv_indptr[{i}] is {end}: accepted are 0 to {len(indices)}, the length of kv_indices"
            )
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
