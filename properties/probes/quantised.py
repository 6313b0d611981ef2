"""Numbers as the codes of a quantised cache, and back."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def codes(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest codes of `numbers` (..., Hkv, lanes) by `scale` (Hkv,), ties to the even one.

    Beyond the largest code the largest. NaN is 0 where codes have none.
    """
    exact = numbers.double() / scale.double()[:, None]
    exact = exact.clamp(-_LARGEST[dtype], _LARGEST[dtype])
    return exact.nan_to_num(0.0).round().to(dtype) if dtype == torch.int8 else exact.to(dtype)


def decoded(held: Tensor, scale: Tensor) -> Tensor:
    """(..., Hkv, lanes) float64: codes times the scale of their head."""
    return held.double() * scale.double()[:, None]
