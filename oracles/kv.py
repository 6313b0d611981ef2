"""Whose keys and values a column and a slot hold, before and after a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.traversal import Walk


@dataclass(frozen=True)
class Frontier:
    """Where a request stands after a commit."""

    boundary: int
    """KV-ready prefix length: columns [0, boundary) hold keys and values."""
    next_root: int
    """Token of the next round's root: the bonus just emitted. It has no keys or values yet."""
    next_root_position: int
    """Its logical index, and the column its keys and values will be written to."""


def committed_columns(tree: CandidateTree, walk: Walk) -> tuple[int, ...]:
    """Node whose keys and values column P + i holds after the commit, for i < len(walk.nodes).

    An accepted node of depth i belongs in column P + i, whichever row it was verified in. Raises
    ValueError where the walk is no path from the root.
    """
    if not walk.nodes or walk.nodes != tree.path(walk.nodes[-1]):
        raise ValueError(f"walk.nodes is {walk.nodes}: a path from the root is accepted")
    return walk.nodes


def frontier(prefix_len: int, walk: Walk) -> Frontier:
    """The boundary moves by the accepted nodes, root included; the bonus stands right on it."""
    boundary = prefix_len + len(walk.nodes)
    return Frontier(boundary, walk.tokens[-1], boundary)


def committed_slots(
    tree: CandidateTree, prefix_len: int, walk: Walk, slots: Sequence[int]
) -> dict[int, int]:
    """Slot to the node it holds after the commit; `slots[c]` is the slot of the request's column c.

    Only columns [P, P + accepted) are listed. What lies behind them is free.
    """
    nodes = committed_columns(tree, walk)
    if len(slots) < prefix_len + len(nodes):
        raise ValueError(f"slots has {len(slots)} columns: {prefix_len + len(nodes)} are committed")
    return {slots[prefix_len + i]: node for i, node in enumerate(nodes)}


def owners(columns: Sequence[Sequence[int]]) -> dict[int, list[tuple[int, int]]]:
    """Slot to the (request, column) pairs that live in it; `columns[b][c]` is a slot, -1 for none.

    Requests may share a slot as the same column of a common prefix and in no other way: ValueError.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for request, slots in enumerate(columns):
        for column, slot in enumerate(slots):
            if slot < 0:
                continue
            for other, other_column in found.get(slot, []):
                if other_column != column:  # within one request always so
                    raise ValueError(
                        f"slot {slot} is column {column} of request {request} "
                        f"and column {other_column} of request {other}"
                    )
            found.setdefault(slot, []).append((request, column))
    return found
