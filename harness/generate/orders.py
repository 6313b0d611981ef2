"""Orders of verify rows: which row each node of a tree gets. The root is row 0 in all of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from treeproof.contract.tree import CandidateTree


def _breadth_first(tree: CandidateTree, rng: Random) -> list[int]:
    return sorted(range(len(tree)), key=tree.depth.__getitem__)


def _depth_first(tree: CandidateTree, rng: Random) -> list[int]:
    nodes, open_nodes = [], [0]
    while open_nodes:
        node = open_nodes.pop()
        nodes.append(node)
        open_nodes += reversed(tree.children(node))
    return nodes


def _parent_first(tree: CandidateTree, rng: Random) -> list[int]:
    """Any order in which a parent comes before its children."""
    nodes, ready = [], [0]
    while ready:
        pick = int(rng.random() * len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        node = ready.pop()
        nodes.append(node)
        ready += tree.children(node)
    return nodes


def _any(tree: CandidateTree, rng: Random) -> list[int]:
    keys = [rng.random() for _ in range(len(tree))]
    return [0, *sorted(range(1, len(tree)), key=keys.__getitem__)]


def _leaves_first(tree: CandidateTree, rng: Random) -> list[int]:
    """Deepest rows first, so that below the root every child comes before its parent."""
    return [0, *sorted(range(1, len(tree)), key=lambda node: -tree.depth[node])]


_ORDERS: dict[str, Callable[[CandidateTree, Random], list[int]]] = {
    "breadth-first": _breadth_first,
    "depth-first": _depth_first,
    "parent-first": _parent_first,
    "any": _any,
    "leaves-first": _leaves_first,
}

ROW_ORDERS = tuple(_ORDERS)
"""Simple ones first: shrinking moves to the front."""


def row_of_node(tree: CandidateTree, order: str, salt: int) -> tuple[int, ...]:
    """The row of each node in one of ROW_ORDERS; `salt` decides what is random in it."""
    rows = [0] * len(tree)
    for row, node in enumerate(_ORDERS[order](tree, Random(salt))):
        rows[node] = row
    return tuple(rows)
