"""What the drawn tree says each row must read: the statement that visibility is held to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import Request


@dataclass(frozen=True)
class Reads:
    """Columns one row must read, each once: prefix `[first, P)` and the rows of `rows`."""

    first: int
    prefix_len: int
    rows: frozenset[int]

    def has(self, column: int) -> bool:
        """Whether logical column c (prefix position, or P + row) is to be read."""
        if column < self.prefix_len:
            return column >= self.first
        return column - self.prefix_len in self.rows

    @property
    def count(self) -> int:
        return self.prefix_len - self.first + len(self.rows)


@lru_cache(maxsize=256)
def expected_reads(request: Request, window: int | None) -> tuple[Reads, ...]:
    """Expected reads of each real row, in row order.

    Row of node v at logical index t = P + depth(v) reads key at logical index p iff
    `t - W < p <= t` on its own path; without a window, everything on its path.
    """
    tree, prefix = request.tree, request.prefix_len
    found = []
    for node in request.node_of_row:
        index = prefix + tree.depth[node]
        lowest = 0 if window is None else max(0, index - window + 1)
        rows = frozenset(
            request.row_of_node[a] for a in tree.path(node) if prefix + tree.depth[a] >= lowest
        )
        found.append(Reads(min(lowest, prefix), prefix, rows))
    return tuple(found)


def ancestor_rows(request: Request, row: int) -> frozenset[int]:
    """Rows of the path from the root to this row, both included, whatever the window."""
    node = request.node_of_row[row]
    return frozenset(request.row_of_node[a] for a in request.tree.path(node))


@lru_cache(maxsize=64)
def read_matrix(
    request: Request, window: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The same as arrays: (N,) first prefix column of each row, and (N, N) rows that it reads."""
    reads = expected_reads(request, window)
    first = np.array([read.first for read in reads], dtype=np.int64)
    rows: npt.NDArray[Any] = np.zeros((len(reads), len(reads)), dtype=bool)
    for row, read in enumerate(reads):
        rows[row, list(read.rows)] = True
    return first, rows
