"""Rotary position embedding at true logical indices, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def rotated(x: Tensor, positions: Tensor, base: float | None) -> Tensor:
    """`x` turned to its positions and rounded to its own dtype, given back as float64.

    x (n, heads, head_dim) in the working dtype, positions (n,) int64 logical indices. Lane i of the
    first half and lane i of the second form a pair, turned by `position * base**(-2i / head_dim)`
    radians. `base` None turns nothing. The rounding belongs to the definition: what a kernel is
    given are rotated numbers in the working dtype (Su et al., RoFormer, 2021; half split as in
    GPT-NeoX and Llama).
    """
    wide = x.double()
    if base is None:
        return wide
    head_dim = x.shape[-1]
    lanes = torch.arange(0, head_dim, 2, dtype=torch.float64, device=x.device)
    angle = positions.double()[:, None] * base ** (-lanes / head_dim)  # (n, head_dim / 2)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    low, high = wide.chunk(2, dim=-1)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return turned.to(x.dtype).double()
