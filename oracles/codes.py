"""Numbers as the codes of a quantised cache keep them, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = {"int8": 127.0, "float8_e4m3fn": 448.0}
_LEAST_EXPONENT = -6
"""Of e4m3: below 2 ** -6 codes are as far apart as there."""


def kept(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """code * scale of the code nearest to each x / scale, ties to the even one; beyond the last, the last.

    `x` and `scale` float64, of shapes that go together.
    """
    code = (x / scale).clamp(-_MOST[dtype], _MOST[dtype])
    step = torch.ones_like(code) if dtype == "int8" else _step(code)
    return (code / step).round() * step * scale


def kept_off(x: Tensor, scale: Tensor, dtype: str, off: Tensor, signs: Tensor) -> Tensor:
    """The same of numbers `x` (...) that may be `off` from what they are, (runs, ...) for as many pairs of
    runs as `signs` (pairs, ...) has: the first of a pair has the code above where its sign is positive, and
    the one below elsewhere; the second the other way about. Most of the time these are one code."""
    low, high = kept(x - off, scale, dtype), kept(x + off, scale, dtype)
    above = (signs.sign() + 1).div(2, rounding_mode="floor").long()
    both = torch.stack((low, high))[:, None].expand(2, *signs.shape)
    pairs = both.gather(0, above[None])[0], both.gather(0, 1 - above[None])[0]
    return torch.stack(pairs, 1).flatten(0, 1)


def _step(code: Tensor) -> Tensor:
    """How far apart e4m3 codes are around this one: three bits behind the leading one."""
    exponent = torch.frexp(code).exponent - 1
    return torch.exp2(exponent.clamp(min=_LEAST_EXPONENT).double() - 3)
