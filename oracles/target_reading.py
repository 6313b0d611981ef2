"""Which keys a token of the small language model reads: lists, cut where a layer's window begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.target_steps import Memory, Steps


def in_a_row(
    steps: Steps, tokens: Sequence[int], start: int, past: Sequence[Memory]
) -> tuple[Tensor, list[Memory]]:
    """Tokens one after another from logical index `start`, each on `past`, what came before it and
    itself: x (runs, n, width), and what each layer holds then, `past` included."""
    x, held = steps.embedded(tokens), []
    turns = steps.turns(range(start, start + len(tokens)))
    for layer, before in enumerate(past):
        q, new = steps.projected(layer, x, turns)
        held.append(before + new)
        reach, out = steps.model.window(layer), []
        for i in range(len(tokens)):
            end = start + i + 1
            upto = held[-1].of(slice(0 if reach is None else max(0, end - reach), end))
            out.append(steps.attended(q[:, :, i : i + 1], upto))
        x = steps.carried(layer, x, out[0] if len(out) == 1 else torch.cat(out, 2))
    return x, held


def on_paths(
    steps: Steps,
    trees: Sequence[CandidateTree],
    tokens: Sequence[Sequence[int]],
    before: Sequence[Sequence[Memory]],
) -> Tensor:
    """x (runs, all nodes, width) of every node of every tree, each behind the path that leads to it.

    `before[b]`: what each layer holds of the tokens before tree b, from logical index 0 on. Nodes of
    one depth have lists of one length and are taken together; a layer's products take all nodes of all
    trees together.
    """
    x = steps.embedded([token for own in tokens for token in own])
    index = [
        len(held[0]) + depth
        for tree, held in zip(trees, before, strict=True)
        for depth in tree.depth
    ]
    turns = steps.turns(index)
    levels = [_levels(tree) for tree in trees]
    for layer in range(steps.model.layers):
        q, new = steps.projected(layer, x, turns)
        out = q.new_zeros(*q.shape[:3], steps.model.v_head_dim)
        first = 0
        for own, held in zip(levels, before, strict=True):
            for nodes, paths in own:
                at = nodes + first
                out[:, :, at] = _on_lists(
                    steps, layer, q[:, :, at], held[layer], new, paths + first
                )
            first += sum(len(nodes) for nodes, _ in own)
        x = steps.carried(layer, x, out)
    return x


def _on_lists(
    steps: Steps, layer: int, q: Tensor, held: Memory, new: Memory, paths: Tensor
) -> Tensor:
    """Queries of nodes of one depth on what their layer holds, and on their paths (m, depth + 1)."""
    reach, count = steps.model.window(layer), paths.shape[1]
    if reach is not None:
        held = held.of(slice(max(0, len(held) + count - reach), None))
        paths = paths[:, max(0, count - reach) :]
    return steps.attended(q, held, new.of(paths))


def _levels(tree: CandidateTree) -> list[tuple[Tensor, Tensor]]:
    """Of each depth its nodes (m,), and their paths (m, depth + 1) from the root to themselves."""
    nodes: dict[int, list[int]] = defaultdict(list)
    for node, depth in enumerate(tree.depth):
        nodes[depth].append(node)
    return [
        (torch.tensor(of), torch.tensor([tree.path(node) for node in of])) for of in nodes.values()
    ]
