"""How scores become weights: softmax, and what a kernel might do in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.ground import Key, Row

Score = Callable[[Tensor, Tensor, AttentionShape], Tensor]
"""q (Hq, D), k (Hq, n, D), both float64, to scores (Hq, n)."""

Weigh = Callable[[Tensor, Sequence[Key], Row, AttentionShape], tuple[Tensor, Tensor]]
"""Scores (Hq, n) to weights (Hq, n), which need not add up to 1, and log-sum-exp (Hq,)."""


Sum = Callable[[Tensor, Tensor], Tensor]
"""Weights (Hq, n) and values (Hq, n, Dv) to outputs (Hq, Dv)."""


def dot(q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    return (k @ q[..., None])[..., 0] * shape.score_scale


def softmax(
    scores: Tensor, keys: Sequence[Key], row: Row, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    lse = scores.logsumexp(-1)
    return (scores - lse[:, None]).exp(), lse


def exact(weights: Tensor, v: Tensor) -> Tensor:
    return (weights[:, None] @ v)[:, 0]


@dataclass(frozen=True)
class Law:
    """`plain`: where all scores are equal all keys weigh the same, as under softmax."""

    score: Score = dot
    weigh: Weigh = softmax
    sum: Sum = exact
    plain: bool = True


SOFTMAX = Law()


def is_own(keys: Sequence[Key], row: Row) -> Tensor:
    """(n,) bool: keys at or past the root's logical index."""
    return torch.tensor([key.at >= row.prefix for key in keys], dtype=torch.bool)
