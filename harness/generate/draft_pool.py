"""The input of `select`: a draft pool out of which each request's tree is selected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.inputs import DraftPool
from treeproof.contract.nodes import Nodes
from treeproof.contract.tree import MAX_NODES, CandidateTree
from treeproof.generate.embedding import embed, pool_dims, pool_size

if TYPE_CHECKING:
    from torch import Tensor

_STEP = 1 / (2 * MAX_NODES)
"""Between the scores of two tree nodes. Exact in float32, and the last of a tree stays above 1/2."""


def draft_pool(case: VerifyCase) -> DraftPool:
    """A pool whose N_b - 1 highest scores are the tree of request b, root apart, without ties.

    It is what a draft model could have left: a child scores less than its parent, siblings come in
    descending order, and the beam slots of a level are the k best candidates of the level above.
    Candidates outside the tree score less than 1/2, and no two siblings share a token.
    """
    import torch

    topk, steps = pool_dims(case)
    pools = [_pool_of(request, topk, steps) for request in case.requests]
    scores, tokens, parents = (torch.stack(column) for column in zip(*pools, strict=True))
    return DraftPool(scores=scores, tokens=tokens, parents=parents, topk=topk, spec_steps=steps)


def pool_index(tree: CandidateTree, topk: int) -> list[int]:
    """Of each node, the candidate of such a pool that it is; -1 of the root, which is none."""
    import numpy as np

    alone = Request(tree=tree, row_of_node=tuple(range(len(tree))), prefix_len=0)
    found: list[int] = embed(Nodes.of([alone]), topk, np.array(_ranks(tree))).index.tolist()
    return found


def _pool_of(request: Request, topk: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens of the pool, and what its beam slots hold."""
    import torch

    tree = request.tree
    rank, index = _ranks(tree), pool_index(tree, topk)
    drafted = range(1, len(tree))
    scores = torch.zeros(pool_size(topk, steps))
    held = torch.tensor([index[node] for node in drafted], dtype=torch.int64)
    scores[held] = torch.tensor([1 - rank[node] * _STEP for node in drafted])
    # Children outside the tree fall below the last tree node, the later the lower.
    fall = 1 - torch.arange(1, topk + 1) / (2 * topk)
    beam = torch.arange(topk)
    parents = [torch.tensor([-1]), beam]
    _fill(scores[:topk], 0.5 * fall)
    for level in range(1, steps):
        start = topk + topk * topk * (level - 1)
        block = scores[start : start + topk * topk]
        _fill(block, (scores[beam].clamp(max=0.5)[:, None] * fall).flatten())
        beam = start + torch.sort(block, descending=True, stable=True).indices[:topk]
        parents.append(beam)
    tokens = max(tree.tokens) + 1 + torch.arange(len(scores)) % topk
    tokens[held] = torch.tensor([tree.tokens[node] for node in drafted], dtype=torch.int64)
    return scores, tokens, torch.cat(parents)


def _fill(cells: Tensor, values: Tensor) -> None:
    """Write into the cells that no tree node holds; those hold zero."""
    free = cells == 0
    cells[free] = values[free]


def _ranks(tree: CandidateTree) -> list[int]:
    """Place of each node by score. Nodes with children come first on their depth: they are beams."""
    order = sorted(range(len(tree)), key=lambda n: (tree.depth[n], not tree.children(n), n))
    rank = [0] * len(tree)
    for place, node in enumerate(order):
        rank[node] = place
    return rank
