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
    fields = tensors_of(x)
    most = _most({name: t for name, t in fields.items() if name not in consumes})
    changed: dict[str, Any] = {
        name: t.clone() if name in consumes else _garbage(t, most.get(name), generator)
        for name, t in fields.items()
    }
    return replace(x, **changed)


def _most(fields: dict[str, Tensor]) -> dict[str, int]:
    """The largest number in each table of indices, all asked for at once."""
    tables = {name: t for name, t in fields.items() if _holds_indices(t) and t.numel()}
    if not tables:
        return {}
    most = torch.stack([t.max().long() for t in tables.values()]).tolist()
    return dict(zip(tables, most, strict=True))


def _holds_indices(table: Tensor) -> bool:
    small = (torch.bool, torch.uint8, torch.uint16, torch.uint32)
    return table.dtype not in small and not table.is_floating_point()


def _garbage(like: Tensor, most: int | None, generator: torch.Generator) -> Tensor:
    """`most`: the largest index of a table; None where there is none."""

    def drawn(low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randint(low, high, shape, generator=generator, device=generator.device)
        return noise.to(like.device)

    if like.is_floating_point():  # parameters of the layer
        factor = torch.rand(like.shape, generator=generator, device=generator.device)
        return like * (0.25 + 2 * factor).to(like)
    if not _holds_indices(like):
        size = like.numel() * like.element_size()
        noise = drawn(0, 2 if like.dtype == torch.bool else 256, (size,))
        return noise.to(torch.uint8).view(like.dtype).reshape(like.shape)
    high = 1 if most is None else max(1, most) + 1
    return drawn(-1, high, tuple(like.shape)).to(like.dtype)


def tensors_of(x: VerifyInput) -> dict[str, Tensor]:
    """Tensor fields that are there, by name."""
    found = {name: getattr(x, name) for name in TENSOR_FIELDS}
    return {name: value for name, value in found.items() if value is not None}
