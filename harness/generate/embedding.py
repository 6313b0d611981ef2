"""A tree inside the index space of an EAGLE draft pool.

With k = topk, pool index s < k is a depth-1 candidate, and a node at depth i + 1 has index
`k + k*k*(i-1) + r*k + c`: the c-th child of beam slot r of level i. `parent_list[s // k]` is the pool
index of the parent (SGLang, srt/speculative/eagle_utils.py and spec_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treeproof.contract.case import VerifyCase
from treeproof.contract.tree import CandidateTree


@dataclass(frozen=True)
class Embedding:
    """Where the nodes of one tree lie in the pool."""

    index: tuple[int, ...]
    """Pool index of each node; -1 for the root, which is no candidate."""
    parent_list: Mapping[int, int]
    """The cells of `parent_list` that lead from a node to its parent, and what they hold."""


def pool_size(topk: int, spec_steps: int) -> int:
    """Candidates in a pool."""
    return topk + (spec_steps - 1) * topk * topk


def pool_dims(case: VerifyCase) -> tuple[int, int]:
    """The smallest topk whose pool holds every tree of the case, and spec_steps: greatest depth.

    A level has topk beam slots and each grows topk children, so that topk bounds both the children
    of a node and the nodes of one depth that have any. Both are at least 1.
    """
    topk = steps = 1
    for request in case.requests:
        tree = request.tree
        steps = max(steps, *tree.depth)
        parents = [0] * (max(tree.depth) + 1)
        for node, depth in enumerate(tree.depth):
            children = len(tree.children(node))
            parents[depth] += children > 0
            topk = max(topk, children)
        topk = max(topk, *parents)
    return topk, steps


def embed(
    tree: CandidateTree,
    topk: int,
    rank: Sequence[int],
    first_slot: Callable[[int, int], int] = lambda level, spare: 0,
) -> Embedding:
    """Give every node a pool index; siblings and beam slots are taken in the order of `rank`.

    `first_slot(level, spare)`, at most `spare`, is the first beam slot used on a level that has
    `spare` slots more than it needs. A depth-1 candidate's slot is its own index, always.
    """
    index = [-1] * len(tree)
    parent_list: dict[int, int] = {}
    for s, node in enumerate(sorted(tree.children(0), key=rank.__getitem__)):
        index[node] = s
    level = [node for node in tree.children(0) if tree.children(node)]
    depth = 1
    while level:
        level.sort(key=rank.__getitem__)
        first = first_slot(depth, topk - len(level)) if depth > 1 else 0
        below = []
        for offset, parent in enumerate(level):
            slot = index[parent] if depth == 1 else first + offset
            cell = 1 + topk * (depth - 1) + slot
            parent_list[cell] = index[parent]
            for c, child in enumerate(sorted(tree.children(parent), key=rank.__getitem__)):
                index[child] = topk * cell + c
            below += [child for child in tree.children(parent) if tree.children(child)]
        level = below
        depth += 1
    return Embedding(tuple(index), parent_list)
