"""Hypothesis strategies for candidate trees and for the requests that hold them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from treeproof.contract.tree import CandidateTree
from treeproof.generate.orders import ROW_ORDERS, row_of_node
from treeproof.generate.topologies import MAX_KNOB, TOKEN_LAWS, TOPOLOGIES, grow, tokens_of

# Made once: building and validating a strategy takes longer than drawing from it.
TOPOLOGY = st.sampled_from(list(TOPOLOGIES))
_KNOB = st.integers(1, MAX_KNOB)
_TOKEN_LAW = st.sampled_from(TOKEN_LAWS)
_ROW_ORDER = st.sampled_from(ROW_ORDERS)
_SALT = st.integers(0, 2**32 - 1)


@st.composite
def trees(
    draw: DrawFn,
    min_rows: int = 1,
    max_rows: int = 64,
    topology: str | None = None,
) -> CandidateTree:
    """Candidate trees of one of TOPOLOGIES, or of the one given, with `min_rows` to `max_rows` nodes.

    Shape, size and token law are drawn by themselves, so that shrinking ends at a small simple tree.
    """
    topology = topology or draw(TOPOLOGY)
    nodes = draw(st.integers(min_rows, max_rows))
    knob = draw(_KNOB)
    law = draw(_TOKEN_LAW)
    salt = draw(_SALT)
    parents = grow(topology, nodes, knob, salt)
    return CandidateTree(tokens_of(parents, law, salt), parents)


@st.composite
def row_orders(draw: DrawFn, tree: CandidateTree) -> tuple[int, ...]:
    """A row for each node of `tree`: breadth-first, depth-first, parent-first, any, leaves first."""
    order = draw(_ROW_ORDER)
    return row_of_node(tree, order, draw(_SALT))
