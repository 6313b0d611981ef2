"""Prompts: one token after another sees all before it. No backend is asked, and none is judged."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.contract.shape import AttentionShape


def prefill(
    decoder: Decoder,
    shape: AttentionShape,
    tokens: list[int],
    first: int,
    slots: Tensor,
    k_caches: Tensor,
    v_caches: Tensor,
) -> Tensor:
    """Logits (n, vocabulary) after n tokens of a prompt, the first of which has index `first`.

    `slots` (first + n,) are those of all columns so far; of the last n, keys and values are written
    to the caches (layers, num_slots, Hkv, lanes) in place.
    """
    index = torch.arange(first, first + len(tokens), device=slots.device)
    distance = index[:, None] - torch.arange(first + len(tokens), device=slots.device)
    hidden = distance < 0
    if shape.window is not None:
        hidden |= distance >= shape.window

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype = k_caches.dtype
        k_caches[layer, slots[first:]] = k.to(dtype)
        v_caches[layer, slots[first:]] = v.to(dtype)
        keys, values = (cache[layer, slots].float() for cache in (k_caches, v_caches))
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("nhd,mhd->hnm", q.to(dtype).float(), keys) * shape.score_scale
        if shape.softcap is not None:
            scores = (scores / shape.softcap).tanh() * shape.softcap
        p = scores.masked_fill(hidden, float("-inf")).softmax(dim=2)
        return torch.einsum("hnm,mhd->nhd", p, values).to(dtype).float()

    given = torch.tensor(tokens, device=slots.device)
    return decoder.forward(given, index, attention)
