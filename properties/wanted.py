"""What the drawn trees say that every row of a launch must read, as tensors for all rows at once.

`expected` says the same of one request in words that failures can use; judges compare here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.properties.scene import Scene


@dataclass(frozen=True)
class Wanted:
    """Reads of T rows, padded ones included, which read nothing.

    `request` (T,) int64. `first` (T,) int64: first prefix column of the row's window. `tree`
    (T, Nmax) bool: rows of the own request on the path and in the window. `count` (T,) float64:
    keys read.
    """

    request: Tensor
    first: Tensor
    tree: Tensor
    count: Tensor


@lru_cache(maxsize=8)
def wanted(scene: Scene) -> Wanted:
    """Row of node v at logical index t = P + depth(v) reads logical index p of its own path iff
    `t - W < p <= t`; without a window, all of its path."""
    requests = scene.case.requests
    counts = [request.num_rows for request in requests]
    request = np.repeat(np.arange(len(requests)), counts)
    start = np.array(scene.case.qo_indptr[:-1])[request]
    prefix = np.array([r.prefix_len for r in requests])[request]
    parent = np.concatenate([[*r.parent_rows, *[-1] * r.pad_rows] for r in requests])
    real = np.concatenate([np.arange(r.num_rows) < r.num_nodes for r in requests])
    parent = np.where(parent < 0, -1, parent + start)  # rows of the launch
    paths = _paths(parent, real)
    depth = np.full(len(parent), -1)
    for above in paths:
        depth += above >= 0
    window = scene.case.shape.window
    lowest = np.zeros_like(depth) if window is None else np.maximum(0, prefix + depth - window + 1)
    tree = np.zeros((len(parent), max(counts)), dtype=bool)
    for steps, above in enumerate(paths):
        seen = np.flatnonzero((above >= 0) & (prefix + depth - steps >= lowest))
        tree[seen, above[seen] - start[seen]] = True
    first = np.minimum(lowest, prefix)
    count = np.where(real, prefix - first + tree.sum(1), 0).astype(np.float64)
    return Wanted(
        *(scene.on_device(x) for x in (request, np.where(real, first, prefix), tree, count))
    )


def _paths(
    parent: npt.NDArray[np.int64], real: npt.NDArray[np.bool_]
) -> list[npt.NDArray[np.int64]]:
    """For 0, 1, ... steps up: the row that each row comes to, -1 above its root; till none is left."""
    above, found = np.where(real, np.arange(len(parent)), -1), []
    while (above >= 0).any():
        found.append(above)
        above = np.where(above < 0, -1, parent[above])
    return found


def columns_of(scene: Scene, slots: Sequence[int]) -> Tensor:
    """(B, n): logical column that each of `slots` (n,), all different, has in each request; -1 none."""
    every, chosen = scene.columns, torch.tensor(slots, device=scene.device)
    place = torch.full((scene.case.layout.num_slots,), -1, device=scene.device)
    place[chosen] = torch.arange(len(slots), device=scene.device)
    at = torch.where(every.slot < 0, -1, place[every.slot.clamp(min=0)])
    columns = torch.full((len(scene.case.requests), len(slots) + 1), -1, device=scene.device)
    columns[every.request, at] = every.column  # what is not asked for goes into the last column
    return columns[:, :-1]


def wanted_reads(scene: Scene, slots: Sequence[int]) -> Tensor:
    """(T, n) float64 of 0 and 1: whether each row must read each of `slots` (n,), all different."""
    want = wanted(scene)
    column = columns_of(scene, slots)[want.request]
    row = (column - scene.prefix_lens[want.request][:, None]).clamp(min=-1)
    in_prefix = (column >= want.first[:, None]) & (row < 0)
    in_tree = want.tree.gather(1, row.clamp(min=0)) & (row >= 0)
    return (in_prefix | in_tree).double()
