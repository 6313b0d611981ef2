"""The greedy accept walk, on the tree itself: no links, no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treeproof.contract.tree import CandidateTree


@dataclass(frozen=True)
class Walk:
    """An accepted path and what it emits; both are equally long and shifted by one token.

    The nodes are inputs whose KV this step computed; the tokens are outputs, the last of which has
    no KV yet.
    """

    nodes: tuple[int, ...]
    """Accepted nodes: the root, then the accepted drafts."""
    tokens: tuple[int, ...]
    """Emitted tokens: the accepted drafts, then the bonus."""


def greedy_walk(tree: CandidateTree, prediction_of_node: Sequence[int], max_len: int) -> Walk:
    """From the root, go to the child whose token the current node predicts, while there is one.

    `prediction_of_node[v]` is the target model's argmax after prefix + path(v). `max_len` is the
    largest number of accepted nodes, root included (spec_steps + 1). The bonus is the prediction of
    the last accepted node. Raises ValueError where an argument does not fit the tree.
    """
    if len(prediction_of_node) != len(tree):
        raise ValueError(
            f"prediction_of_node has {len(prediction_of_node)} entries for a tree of {len(tree)} nodes"
        )
    if max_len < 1:
        raise ValueError(f"max_len is {max_len}: accepted are 1 and more, the root counts")
    nodes, tokens = [0], [prediction_of_node[0]]
    while len(nodes) < max_len:
        matching = [u for u in tree.children(nodes[-1]) if tree.tokens[u] == tokens[-1]]
        if not matching:
            break
        nodes.append(matching[0])  # the only one: siblings hold distinct tokens
        tokens.append(prediction_of_node[matching[0]])
    return Walk(tuple(nodes), tuple(tokens))
