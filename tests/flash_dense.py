"""Attention of queries over lists of keys, one after another in float64: what stand-ins compute with.

Windows are cut by slicing and lists by their lengths, so nothing is masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor


def attend(
    q: Tensor,
    lists: Iterable[tuple[Tensor, Tensor]],
    cu_seqlens_q: Tensor,
    *,
    scale: float,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    empty: float = -math.inf,
) -> tuple[Tensor, Tensor]:
    """`q` (T, Hq, D), a pair of keys (L, Hkv, D) and values (L, Hkv, Dv) a sequence.

    Query i of n at key L - n + i; a negative side of the window has no end. Out (T, Hq, Dv) in the
    dtype of `q`, and the log-sum-exp (Hq, T) float32 as FlashAttention lays it out, `empty` over no key.
    """
    outs, lses = [], []
    for (keys, values), (first, end) in zip(lists, pairwise(cu_seqlens_q.tolist()), strict=True):
        for row in range(first, end):
            at = len(keys) - (end - first) + row - first
            low = max(0, at - window[0]) if window[0] >= 0 else 0
            high = min(len(keys), at + window[1] + 1) if window[1] >= 0 else len(keys)
            out, lse = _one(q[row], keys[low:high], values[low:high], scale, softcap, sinks, empty)
            outs.append(out.to(q.dtype))
            lses.append(lse)
    return torch.stack(outs), torch.stack(lses, dim=1).float()


def _one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    empty: float,
) -> tuple[Tensor, Tensor]:
    """One query (Hq, D)."""
    group = len(q) // k.shape[1]
    if not len(k):
        return q.new_zeros(len(q), v.shape[2]), torch.full((len(q),), empty, dtype=torch.float64)
    keys = k.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,lhd->hl", q.double(), keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.exp()
    total = weights.sum(dim=1)
    if sinks is not None:
        total = total + sinks.double().exp()
    values = v.double().repeat_interleave(group, dim=1)
    return torch.einsum("hl,lhd->hd", weights / total[:, None], values), total.log()


def flat(
    k: Tensor, v: Tensor, cu_seqlens_k: Tensor, used: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Lists that lie one after another; `used` keys of each, where not all are."""
    assert int(cu_seqlens_k[-1]) == len(k) == len(v)
    counts = (cu_seqlens_k.diff() if used is None else used).tolist()
    begins = cu_seqlens_k.tolist()[:-1]
    return [(k[a : a + n], v[a : a + n]) for a, n in zip(begins, counts, strict=True)]


def paged(k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Lists in pages: `k` and `v` (pages, page size, Hkv, lanes); whole pages are read, then cut."""
    size, found = k.shape[1], []
    for line, length in zip(table.tolist(), lengths.tolist(), strict=True):
        pages = line[: math.ceil(length / size)]
        assert all(0 <= page < len(k) for page in pages)
        found.append((k[pages].flatten(0, 1)[:length], v[pages].flatten(0, 1)[:length]))
    return found


def expect(**integers: Tensor) -> None:
    """Tensors of indices as the libraries want them: int32, and no gaps in the last dimension."""
    for name, tensor in integers.items():
        assert tensor.dtype == torch.int32, f"{name} must be int32"
        assert tensor.stride(-1) == 1, f"{name} must be contiguous"


def longest(cu_seqlens: Tensor) -> int:
    return int(cu_seqlens.diff().max())
