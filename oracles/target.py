"""A small language model on every path of a tree, in float64, and how far float32 may be from it.

A token sees what came before it on its own path: a list that grows by one. The limit is measured on
the model itself: it is run several times more with every operation off by as much as float32 can be
off there ((terms + 2) u of the summed magnitudes, u = 2^-24) in a random direction, so errors travel
through layers as they do and not as norms would let them. Three times the largest change seen is
allowed: real roundings are smaller than that from the start, for those of a sum cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.target_steps import Memory, Steps, in_a_row, with_limit


@dataclass(frozen=True)
class TargetResult:
    """In node order, float64: logits (N, vocabulary), and the limit on their errors (N, 1)."""

    logits: Tensor
    limit: Tensor


def target_logits(
    model: TargetModel, prefix: Sequence[int], tree: CandidateTree, tokens: Sequence[int]
) -> TargetResult:
    """Logits after every node: the model on `prefix` and then the tokens of the node's path.

    `tokens[v]` is node v's, below `model.vocab_size`, whatever the tree itself holds. Raises
    ValueError where a token is not.
    """
    for token in (*prefix, *tokens):
        if not 0 <= token < model.vocab_size:
            raise ValueError(f"token {token}: accepted are 0 to {model.vocab_size - 1}")
    steps = Steps(model)
    nothing = [steps.nothing] * model.layers
    before = in_a_row(steps, prefix, 0, nothing)[1] if prefix else nothing
    own: list[list[Memory]] = []
    logits = []
    for node in range(len(tree)):
        past = list(before)
        for ancestor in tree.ancestors(node):
            past = [seen + new for seen, new in zip(past, own[ancestor], strict=True)]
        index = len(prefix) + tree.depth[node]
        x, seen = in_a_row(steps, [tokens[node]], index, past)
        own.append(seen)
        logits.append(steps.logits(x)[:, 0])
    return TargetResult(*with_limit(torch.stack(logits, 1)))
