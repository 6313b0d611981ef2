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
    if dtype == torch.int8:
        return exact.nan_to_num(0.0).round().to(dtype)
    return _sticky(exact).to(dtype)


def _sticky(exact: Tensor) -> Tensor:
    """float32 cut off, its last bit set where anything was cut: rounded once more, it is as if `exact`
    had been. torch converts by way of float32, which would round a little above half way to half way.
    """
    near = exact.float()
    away = near.double().abs() > exact.abs()
    cut = torch.where(away, torch.nextafter(near, torch.zeros_like(near)), near)
    return torch.where(cut.double() == exact, cut, (cut.view(torch.int32) | 1).view(torch.float32))


def decoded(held: Tensor, scale: Tensor) -> Tensor:
    """(..., Hkv, lanes) float64: codes times the scale of their head."""
    return held.double() * scale.double()[:, None]
