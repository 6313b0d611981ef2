"""What the drawn trees say that every row of a launch must read, as tensors for all rows at once.

`expected` says the same of one request in words that failures can use; judges compare here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.properties.scene import Scene

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Wanted:
    """Reads of T rows, padded ones included, which read nothing.

    `requests` is B. `request`, `place` (T,) int64: where the row is. `first` (T,) int64: first prefix column of the
    row's window. `tree` (T, Nmax) bool: rows of the own request on the path and in the window.
    `count` (T,) float64: keys read.
    """

    requests: int
    request: Tensor
    place: Tensor
    first: Tensor
    tree: Tensor
    count: Tensor

    @cached_property
    def by_request(self) -> Tensor:
        """`tree` of each request, (B, Nmax, Nmax) float32 of 0 and 1."""
        return self.padded(self.tree.float())

    def padded(self, of_rows: Tensor) -> Tensor:
        """(T, ...) as (B, Nmax, ...), 0 where a request has no such row."""
        table = of_rows.new_zeros(self.requests, self.tree.shape[1], *of_rows.shape[1:])
        table[self.request, self.place] = of_rows
        return table


@lru_cache(maxsize=8)
def wanted(scene: Scene) -> Wanted:
    """Row of node v at logical index t = P + depth(v) reads logical index p of its own path iff
    `t - W < p <= t`; without a window, all of its path."""
    requests, window = scene.case.requests, scene.case.shape.window
    nodes, rows = scene.case.nodes, [request.num_rows for request in requests]
    request = np.arange(len(requests)).repeat(rows)
    start = np.array(scene.case.qo_indptr[:-1])
    prefix = np.array([r.prefix_len for r in requests])[request]
    row = nodes.row + start[nodes.request]
    parent, depth = np.full(len(request), -1), np.full(len(request), -1)
    parent[row] = np.where(nodes.parent < 0, -1, row[nodes.parent])
    depth[row] = nodes.depth
    place = np.arange(len(parent)) - start[request]
    tree = _closure(parent, place, max(rows))
    tree[depth < 0] = False
    lowest = np.zeros_like(depth)
    if window is not None:
        lowest = np.maximum(0, prefix + depth - window + 1)
        reader, read = tree.nonzero()
        index = (prefix + depth)[start[request[reader]] + read]
        tree[reader, read] = index >= lowest[reader]
    first = np.where(depth < 0, prefix, np.minimum(lowest, prefix))
    count = (prefix - first + tree.sum(1)).astype(np.float64)
    where = scene.on_device(np.stack((request, place, first)))
    return Wanted(
        len(requests), where[0], where[1], where[2], scene.on_device(tree), scene.on_device(count)
    )


def _closure(parent: Ints, place: Ints, width: int) -> npt.NDArray[np.bool_]:
    """(T, width): the row itself and all rows above it, by `place` (T,) in their requests.

    `parent` (T,) is a row of the launch, -1 of roots. Steps up double from turn to turn.
    """
    seen = np.zeros((len(parent) + 1, width), dtype=bool)  # the last row stands above all roots
    seen[np.arange(len(parent)), place] = True
    above = np.append(parent, -1)
    while (above >= 0).any():
        seen |= seen[above]
        above = np.where(above < 0, -1, above[above])
    return seen[:-1]


def columns_of(scene: Scene, slots: Sequence[int]) -> Tensor:
    """(B, n): logical column that each of `slots` (n,), all different, has in each request; -1 none."""
    every, chosen = scene.columns, torch.tensor(slots, device=scene.device)
    place = torch.full((scene.case.layout.num_slots,), -1, device=scene.device)
    place[chosen] = torch.arange(len(slots), device=scene.device)
    at = torch.where(every.slot < 0, -1, place[every.slot.clamp(min=0)])
    columns = torch.full((len(scene.case.requests), len(slots) + 1), -1, device=scene.device)
    columns[every.request, at] = every.column  # what is not asked for goes into the last column
    return columns[:, :-1]


@dataclass(frozen=True)
class OwnReads:
    """Some slots as each request holds them: what its rows must read of them, and of no others.

    `slot` (B, n) int64: -1 past the last of a request's own. `read` (B, Nmax, n) float32 of 0 and 1.
    """

    slot: Tensor
    read: Tensor


def own_reads(scene: Scene, slots: Sequence[int]) -> OwnReads:
    """`wanted_reads` of `slots` (n,), all different, without those that a request does not hold."""
    requests, want = scene.case.requests, wanted(scene)
    request, held, column = _holders(scene, np.array(slots, dtype=np.int64))
    counts = np.bincount(request, minlength=len(requests))
    place = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((2, len(requests), max(1, counts.max())), -1)
    table[:, request, place] = held, column
    slot, column = scene.on_device(table)
    return OwnReads(slot, want.padded(_reads(scene, want, column[want.request]).float()))


def _holders(scene: Scene, slots: Ints) -> tuple[Ints, Ints, Ints]:
    """Request, slot and column of every column that is held in one of `slots`, requests in order."""
    if scene.ledger.apart:
        request, column = scene.ledger.holders(slots)
        order = np.lexsort((column, request))
        return request[order], slots[order], column[order]
    held, lengths = np.concatenate(scene.ledger.slots), np.array(scene.ledger.lengths)
    asked = np.zeros(max(scene.case.layout.num_slots, held.max(initial=0) + 1) + 1, dtype=bool)
    asked[slots] = True
    found = np.flatnonzero(
        asked[held]
    )  # the last cell stands for evicted columns, and is not asked
    request = np.searchsorted(lengths.cumsum(), found, side="right")
    return request, held[found], found - (lengths.cumsum() - lengths)[request]


def wanted_reads(scene: Scene, slots: Sequence[int]) -> Tensor:
    """(T, n) float64 of 0 and 1: whether each row must read each of `slots` (n,), all different."""
    want = wanted(scene)
    return _reads(scene, want, columns_of(scene, slots)[want.request]).double()


def _reads(scene: Scene, want: Wanted, column: Tensor) -> Tensor:
    """(T, n) bool: whether each row must read `column` (T, n) of its request; -1 is none."""
    row = (column - scene.prefix_lens[want.request][:, None]).clamp(min=-1)
    in_prefix = (column >= want.first[:, None]) & (row < 0)
    in_tree = want.tree.gather(1, row.clamp(min=0)) & (row >= 0)
    return in_prefix | in_tree
