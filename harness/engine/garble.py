"""Fields a backend does not consume reach it as garbage, which proves what it reads."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import TENSOR_FIELDS, VerifyInput


def garble(x: VerifyInput, consumes: Set[str], seed: int) -> VerifyInput:
    """A copy of `x`: consumed fields cloned, all others plausible garbage drawn from the seed.

    Garbage stays in the range that indices have, so that it misleads rather than crashes.
    """
    # Drawn where it lies: a mask of a long prefix is millions of cells.
    generator = torch.Generator(x.seq_lens.device).manual_seed(seed % 2**63)
    changed: dict[str, Any] = {}
    for name in TENSOR_FIELDS:
        value = getattr(x, name)
        if value is None:
            continue
        changed[name] = value.clone() if name in consumes else _garbage(value, generator)
    return replace(x, **changed)


def _garbage(like: Tensor, generator: torch.Generator) -> Tensor:
    def drawn(low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randint(low, high, shape, generator=generator, device=generator.device)
        return noise.to(like.device)

    if like.dtype == torch.bool or like.dtype in (torch.uint8, torch.uint16, torch.uint32):
        size = like.numel() * like.element_size()
        noise = drawn(0, 2 if like.dtype == torch.bool else 256, (size,))
        return noise.to(torch.uint8).view(like.dtype).reshape(like.shape)
    if like.is_floating_point():  # parameters of the layer
        factor = torch.rand(like.shape, generator=generator, device=generator.device)
        return like * (0.25 + 2 * factor).to(like)
    low, high = (-1, 1) if like.numel() == 0 else (-1, max(1, int(like.max())) + 1)
    return drawn(low, high, tuple(like.shape)).to(like.dtype)


def tensors_of(x: VerifyInput) -> dict[str, Tensor]:
    """Tensor fields that are there, by name."""
    found = {name: getattr(x, name) for name in TENSOR_FIELDS}
    return {name: value for name, value in found.items() if value is not None}
