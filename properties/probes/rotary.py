"""Rotary embedding as the harness applies it: float64 angles, rounded once to the working dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(base: float, head_dim: int, device: torch.device) -> Tensor:
    """(head_dim / 2,) float64: radians a position, base ** (-2i / head_dim)."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return torch.as_tensor(base, dtype=torch.float64, device=device) ** -exponent


def rotate(t: Tensor, positions: Tensor, frequency: Tensor) -> Tensor:
    """Rotate (rows, heads, D) by `positions` (rows,): lane i pairs with lane i + D/2."""
    angle = positions.double()[:, None, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = t.double().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(t.dtype)
