"""Attention as an engine does it that nobody judges: of prompts, and of rounds of who has no attention."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.inputs import LayerParameters
from treeproof.contract.shape import AttentionShape


def attend(
    shape: AttentionShape,
    layer: LayerParameters,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    distance: Tensor,
) -> Tensor:
    """(n, Hq, Dv) float32, rounded as the case's dtype rounds: queries (n, Hq, D) on keys (m, Hkv, D) and
    values (m, Hkv, Dv), all float32.

    `distance` (n, m): how many indices each key lies before each query, which does not read those behind
    it and those that its window has left behind.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("nhd,mhd->hnm", q, keys) * shape.score_scale
    if shape.softcap is not None:
        scores = (scores / shape.softcap).tanh() * shape.softcap
    if layer.alibi_slopes is not None:
        scores = scores - layer.alibi_slopes[:, None, None] * distance
    hidden = distance < 0
    if shape.window is not None:
        hidden = hidden | (distance >= shape.window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, sinks), 2)
    p = scores.softmax(dim=2)[..., : len(keys)]
    out = torch.einsum("hnm,mhd->nhd", p, values)
    return out.to(getattr(torch, shape.dtype)).float()
