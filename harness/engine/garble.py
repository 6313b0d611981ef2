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
    changed: dict[str, Any] = {
        name: t.clone() if name in consumes else t for name, t in tensors_of(x).items()
    }
    others = {name: t for name, t in changed.items() if name not in consumes}
    indices = {name: t for name, t in others.items() if _holds_indices(t) and t.numel()}
    sizes = [t.numel() for t in indices.values()]
    noise = torch.randint(2**40, (sum(sizes),), generator=generator, device=generator.device)
    for (name, t), own in zip(indices.items(), torch.split_with_sizes(noise, sizes), strict=True):
        # From -1 to the largest index there is, of which the device need not tell.
        most = t.max().long().clamp_min(1)
        changed[name] = (own.view(t.shape).to(t.device) % (most + 2) - 1).to(t.dtype)
    for name, t in others.items():
        if name not in indices:
            changed[name] = _garbage(t, generator)
    return replace(x, **changed)


def _garbage(like: Tensor, generator: torch.Generator) -> Tensor:
    if like.is_floating_point():  # parameters of the layer
        factor = torch.rand(like.shape, generator=generator, device=generator.device)
        return like * (0.25 + 2 * factor).to(like)
    size, high = like.numel() * like.element_size(), 2 if like.dtype == torch.bool else 256
    noise = torch.randint(high, (size,), generator=generator, device=generator.device)
    octets = noise.to(torch.uint8).to(like.device)
    return octets.view(like.dtype).reshape(like.shape)


def _holds_indices(table: Tensor) -> bool:
    small = (torch.bool, torch.uint8, torch.uint16, torch.uint32)
    return table.dtype not in small and not table.is_floating_point()


def tensors_of(x: VerifyInput) -> dict[str, Tensor]:
    """Tensor fields that are there, by name."""
    found = {name: getattr(x, name) for name in TENSOR_FIELDS}
    return {name: value for name, value in found.items() if value is not None}
