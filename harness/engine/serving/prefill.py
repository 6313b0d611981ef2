"""Prompts: one token after another sees all before it. No backend is asked, and none is judged."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.engine.serving.attention import attend
from treeproof.engine.serving.layers import Layers
from treeproof.engine.serving.memory import Memory


def prefill(
    decoder: Decoder, layers: Layers, memory: Memory, tokens: list[int], first: int, slots: Tensor
) -> Tensor:
    """Logits (n, vocabulary) after n tokens of a prompt, the first of which has index `first`.

    `slots` (first + n,) are those of all columns so far; of the last n, keys and values are written.
    """
    index = torch.arange(first, first + len(tokens), device=slots.device)
    distance = index[:, None] - torch.arange(first + len(tokens), device=slots.device)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory.write(layer, slots[first:], *memory.stored(k, v))
        shape, (keys, values) = layers.shape(layer), memory.read(layer, slots)
        return attend(shape, layers.parameters, memory.rounded(q), keys, values, distance)

    given = torch.tensor(tokens, device=slots.device)
    return decoder.forward(given, index, attention)
