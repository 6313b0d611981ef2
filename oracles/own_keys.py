"""Which keys each node reads: a slice of the prefix that all nodes of its request read, and a list.

A sequence prefix + path(v) is cut where its window begins. The part of the prefix that every node of a
request still sees is a slice, read once for all of them. The rest is a list of its own: the prefix keys
a window leaves to some nodes only, then the nodes on the path. Lists of all nodes stand one after
another; none is lengthened to fit another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from treeproof.contract.tree import CandidateTree

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OwnKeys:
    """Of N nodes of all requests. `keys` (pairs,): the nodes' lists, node i's next `counts[i]` of them,
    counted through what `listed` names.

    Request b's prefix keys [`oldest[b]`, `shared[b]`) are read by some of its nodes only and those from
    `shared[b]` on by all. `listed`: for each request in turn, the former, and then its nodes. `visible`
    (N,): keys that a node reads at all. `at` (N,): the logical index it stands at.
    """

    keys: _Numbers
    counts: _Numbers
    oldest: list[int]
    shared: list[int]
    visible: _Numbers
    at: _Numbers

    @classmethod
    def of(
        cls, trees: Sequence[CandidateTree], prefix_lens: Sequence[int], window: int | None
    ) -> OwnKeys:
        sizes = np.array([len(tree) for tree in trees])
        begin = np.cumsum(sizes) - sizes
        prefix = np.array(prefix_lens, np.int64)
        request = np.repeat(np.arange(len(trees)), sizes)
        depth = _all(tree.depth for tree in trees)
        parent = _all(tree.parents for tree in trees) + begin[request]  # of a root: never asked
        at = prefix[request] + depth
        first = np.zeros_like(at) if window is None else np.maximum(0, at - window + 1)
        shared = np.minimum(prefix, np.maximum.reduceat(first, begin))
        oldest = np.minimum(shared, np.minimum.reduceat(first, begin))
        some = shared - oldest
        key_of_prefix = begin + np.cumsum(some) - some - oldest  # + index
        key_of_node = np.arange(len(at)) + np.cumsum(some)[request]
        of_prefix = np.maximum(0, shared[request] - first)
        of_path = depth + 1 - np.maximum(0, first - prefix[request])
        counts = of_prefix + of_path
        end = np.cumsum(counts)
        keys = np.empty(counts.sum(), np.int64)
        node = np.repeat(np.arange(len(at)), of_prefix)
        step = np.arange(len(node)) - (np.cumsum(of_prefix) - of_prefix)[node]
        keys[(end - counts)[node] + step] = key_of_prefix[request[node]] + first[node] + step
        asking = above = np.argsort(-of_path, kind="stable")
        longer = len(at) - np.cumsum(np.bincount(of_path))  # nodes whose path has more than so many
        for up, count in enumerate(longer.tolist()):
            asking, above = asking[:count], above[:count]
            keys[end[asking] - 1 - up] = key_of_node[above]
            above = parent[above]
        visible = at + 1 - first
        return cls(keys, counts, oldest.tolist(), shared.tolist(), visible, at)


def _all(numbers: Iterable[Sequence[int]]) -> _Numbers:
    return np.fromiter(chain.from_iterable(numbers), np.int64)
