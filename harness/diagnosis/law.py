"""How scores become weights: what a layer says, and what a kernel might do in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.inputs import LayerParameters
from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.ground import Key, Row

Score = Callable[[Tensor, Tensor, AttentionShape], Tensor]
"""q (Hq, D), k (Hq, n, D), both float64, to scaled scores (Hq, n)."""

Cap = Callable[[Tensor, AttentionShape], Tensor]
"""Scores to scores."""

Distance = Callable[[Sequence[Key], Row], Tensor]
"""(n,) float64: how far back each key lies, which the slopes of ALiBi are multiplied by."""

Weigh = Callable[[Tensor, Sequence[Key], Row], tuple[Tensor, Tensor]]
"""Logits (Hq, n) to weights (Hq, n), which need not add up to 1, and log-sum-exp (Hq,)."""

Sum = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Least and greatest weights (Hq, n) that a kernel may have come to, values (Hq, n, Dv) and which of
them are the tree's (n,) to the least and greatest outputs (Hq, Dv)."""

KVHeads = Callable[[AttentionShape], list[int]]
"""KV head that each query head reads."""

Scales = Callable[[LayerParameters], tuple[Tensor, Tensor]]
"""What codes of K and of V are multiplied by, (Hkv,) each."""


def dot(q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    return (k @ q[..., None])[..., 0] * shape.score_scale


def capped(scores: Tensor, shape: AttentionShape) -> Tensor:
    if shape.softcap is None:
        return scores
    return shape.softcap * torch.tanh(scores / shape.softcap)


def distance(keys: Sequence[Key], row: Row) -> Tensor:
    return torch.tensor([row.position - key.at for key in keys], dtype=torch.float64)


def softmax(logits: Tensor, keys: Sequence[Key], row: Row) -> tuple[Tensor, Tensor]:
    lse = logits.logsumexp(-1)
    return (logits - lse[:, None]).exp(), lse


def own_kv_heads(shape: AttentionShape) -> list[int]:
    return [head // shape.group_size for head in range(shape.num_q_heads)]


def own_scales(layer: LayerParameters) -> tuple[Tensor, Tensor]:
    assert layer.k_scale is not None
    assert layer.v_scale is not None
    return layer.k_scale, layer.v_scale


@dataclass(frozen=True)
class Law:
    """`plain`: where all scores are equal all keys weigh the same, as under softmax.

    `distance` None: no slopes. `sinks`: they take part. `sum` None: products are added up exactly.
    """

    score: Score = dot
    cap: Cap = capped
    distance: Distance | None = distance
    sinks: bool = True
    weigh: Weigh = softmax
    sum: Sum | None = None
    scales: Scales = own_scales
    kv_heads: KVHeads = own_kv_heads
    plain: bool = True


SOFTMAX = Law()


def is_own(keys: Sequence[Key], row: Row) -> Tensor:
    """(n,) bool: keys at or past the root's logical index."""
    return torch.tensor([key.at >= row.prefix for key in keys], dtype=torch.bool)
