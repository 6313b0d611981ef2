"""A tree inside the index space of an EAGLE draft pool.

With k = topk, pool index s < k is a depth-1 candidate, and a node at depth i + 1 has index
`k + k*k*(i-1) + r*k + c`: the c-th child of beam slot r of level i. `parent_list[s // k]` is the pool
index of the parent (SGLang, srt/speculative/eagle_utils.py and spec_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeproof.contract.case import VerifyCase
from treeproof.contract.nodes import Nodes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Embedding:
    """Where the nodes of some trees lie in their pools: (nodes,) each, as in `Nodes`.

    `index` is its pool index; -1 for a root, which is no
    candidate. `cell` is the cell of the tree's `parent_list` that holds `index`, for what its children
    are found by; -1 where a node has none, and for roots.
    """

    index: Ints
    cell: Ints


def pool_size(topk: int, spec_steps: int) -> int:
    """Candidates in a pool."""
    return topk + (spec_steps - 1) * topk * topk


def pool_dims(case: VerifyCase) -> tuple[int, int]:
    """The smallest topk whose pool holds every tree of the case, and spec_steps: greatest depth.

    Both are at least 1.
    """
    trees = [request.tree for request in case.requests]
    return max(tree.topk for tree in trees), max(1, *(max(tree.depth) for tree in trees))


def _from_the_first(levels: Ints, spare: Ints) -> Ints:
    first: Ints = spare * 0
    return first


def embed(
    nodes: Nodes,
    topk: int,
    rank: Ints,
    first_slot: Callable[[Ints, Ints], Ints] = _from_the_first,
) -> Embedding:
    """Give every node a pool index; siblings and beam slots are taken in the order of `rank` (nodes,).

    `first_slot(levels, spare)`, at most `spare` (n,), is the first beam slot used on levels, (request,
    depth) of each (2, n), that have `spare` slots more than they need. A depth-1 candidate's slot is
    its own index, always.
    """
    import numpy as np

    parent, depth = nodes.parent, nodes.depth
    child, _ = _places(parent, rank)
    grows = np.zeros(len(parent), dtype=bool)
    grows[parent[parent >= 0]] = True
    beams = np.flatnonzero(grows & (depth > 0))
    levels = np.stack((nodes.request[beams], depth[beams]))
    offset, together = _places(levels[0] * (depth.max() + 1) + levels[1], rank[beams])
    slot = np.where(levels[1] == 1, child[beams], first_slot(levels, topk - together) + offset)
    cell = np.full(len(parent), -1)
    cell[beams] = 1 + topk * (levels[1] - 1) + slot
    index = np.where(depth > 1, topk * cell[parent] + child, child)
    return Embedding(np.where(depth > 0, index, -1), cell)


def _places(group: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """(n,) place of each by its rank among those of the same group, and (n,) how many they are."""
    import numpy as np

    order = np.lexsort((rank, group))
    ordered, index = group[order], np.arange(len(group))
    begins = np.ones(len(group), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = index[begins]
    counts = np.append(first[1:], len(group)) - first
    place, together = np.empty_like(group), np.empty_like(group)
    place[order] = index - np.repeat(first, counts)
    together[order] = np.repeat(counts, counts)
    return place, together
