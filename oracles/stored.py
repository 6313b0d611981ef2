"""What a quantised cache holds of a number: the nearest code, times the scale of its head."""

from __future__ import annotations

import torch
from torch import Tensor


def stored(x: Tensor, scale: Tensor | None, kv_dtype: str | None) -> Tensor:
    """`x` (n, heads, lanes) float64 as the cache gives it back; `scale` (heads,), any float dtype.

    Codes are whole numbers up to 127 (int8), or numbers with three bits after the point, exponents
    from -6 up and at most 448 (float8_e4m3fn, OCP 8-bit floating point, 2023). Ties go to the even
    code. `kv_dtype` None stores the numbers themselves. Raises ValueError where a scale is missing.
    """
    if kv_dtype is None:
        return x
    if scale is None:
        raise ValueError(f"a cache in {kv_dtype} needs a scale for every head")
    unit = scale.double()[:, None]
    codes = x / unit
    if kv_dtype == "int8":
        return codes.round().clamp(-127, 127) * unit
    _, exponent = torch.frexp(codes)  # |code| = m * 2**exponent with m from 1/2 to 1
    step = torch.ldexp(torch.ones_like(codes), exponent.clamp(min=-5) - 4)
    return ((codes / step).round() * step).clamp(-448, 448) * unit
