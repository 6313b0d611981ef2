"""The selected trees as rows: parents, bounded upward walks, and links. Plain integers, all requests at once.

What a malformed selection gives is defined here, as SGLang's Triton builder defines it: a row whose
parent was not selected keeps its place and gets no link, and no walk is longer than `spec_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def on_host(tensor: Tensor) -> Ints:
    """Not to be written to: on the CPU it is the tensor's own memory."""
    values: Ints = tensor.cpu().numpy()
    return values


def parent_rows(selected: Ints, real: Bools, parent_list: Ints, topk: int) -> Ints:
    """(B, N) parent row of every row; -1 for the root (row 0), for orphans and for padding.

    `selected` (B, N - 1): cell j - 1 is the pool index behind row j; `real` (B, N - 1): cells that are no
    padding; `parent_list` as in `Candidates`. Where a pool index was selected twice the first row that holds
    it is the parent.
    """
    beam = selected // topk
    listed = (beam > 0) & (beam < parent_list.shape[1])
    up = np.full_like(selected, -1)
    if listed.any():
        pool = np.take_along_axis(parent_list, np.where(listed, beam, 0), axis=1)
        holds = (selected[:, None, :] == pool[:, :, None]) & real[:, None, :]
        up = np.where(listed & holds.any(2), holds.argmax(2) + 1, -1)
    up[beam == 0] = 0
    up[~real] = -1
    return np.pad(up, ((0, 0), (1, 0)), constant_values=-1)


@dataclass(frozen=True)
class Walks:
    """What rows meet going up: themselves, their parents, ..., the root left out.

    A walk ends below the root, at an orphan, or after `spec_steps` rows, so that a cycle ends too.
    """

    meets: Bools
    """(B, N, N): whether row i meets row j."""
    depth: Ints
    """(B, N): length of the walk."""


def walk_up(parents: Ints, nodes: Ints, spec_steps: int) -> Walks:
    """Of the first `nodes[b]` rows of each request; those behind them do not walk."""
    requests, rows = parents.shape
    meets = np.zeros((requests, rows, rows), dtype=bool)
    depth = np.zeros_like(parents)
    at = np.where(np.arange(rows) < nodes[:, None], np.arange(rows), -1)
    for _ in range(spec_steps):
        b, row = (at > 0).nonzero()
        if not len(b):
            break
        met = at[b, row]
        meets[b, row, met] = True
        depth[b, row] += 1
        at[b, row] = parents[b, met]
    return Walks(meets, depth)


def links(parents: Ints) -> tuple[Ints, Ints]:
    """(next_token, next_sibling), (B, N) each: first child and next sibling of each row, -1 where there is
    none. Siblings are chained in ascending row order.
    """
    rows = np.arange(parents.shape[1])
    child = parents[:, None, :] == rows[:, None]
    sibling = (parents[:, None, :] == parents[:, :, None]) & (parents >= 0)[:, :, None]
    sibling &= rows > rows[:, None]
    return _first(child), _first(sibling)


def _first(chosen: Bools) -> Ints:
    """(B, N) the first column of each row that is chosen; -1 where none is."""
    return np.where(chosen.any(2), chosen.argmax(2), -1)
