"""One tile of keys at a time into a running softmax: what every attention kernel here is made of."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, UPCAST: tl.constexpr):
    """Matrix product of two tiles, in full precision where they are float32.

    UPCAST: in float32 whatever they are, which changes no factor. The interpreter needs it: it holds
    bfloat16 as integers and would multiply those.
    """
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def capped(scores, softcap):
    """`softcap * tanh(scores / softcap)`, by the exponential of a number that is never positive."""
    x = scores / softcap
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return softcap * tl.where(x < 0, -t, t)


@triton.jit
def folded(top, total, acc, scores, v, UPCAST: tl.constexpr):
    """The running state (M,), (M,), (M, Dv) after a tile: scores (M, N), -inf where hidden, v (N, Dv).

    Weights are rounded to the dtype of the values, as matrix units take them.
    """
    higher = tl.maximum(top, tl.max(scores, 1))
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp(scores - level[:, None])
    kept = tl.exp(top - level)
    acc = acc * kept[:, None] + product(weights.to(v.dtype), v, UPCAST)
    return higher, total * kept + tl.sum(weights, 1), acc


@triton.jit
def read(
    top,
    total,
    acc,
    queries,  # (M, D)
    k,  # where this head's keys begin in the cache
    v,
    slot,  # (N,) of one tile of keys
    there,  # (N,) False: no key; nothing is read
    seen,  # (M, N)
    k_slot,  # elements from one slot to the next
    v_slot,
    scale,
    softcap,
    D: tl.constexpr,
    DV: tl.constexpr,
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """The running state after a tile of keys and values out of the cache."""
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    keys = tl.load(k + slot * k_slot + d[:, None], mask=there & (d < D)[:, None], other=0.0)
    values = tl.load(v + slot[:, None] * v_slot + dv, mask=there[:, None] & (dv < DV), other=0.0)
    scores = product(queries, keys, UPCAST) * scale
    if CAPPED:
        scores = capped(scores, softcap)
    return folded(top, total, acc, tl.where(seen, scores, float("-inf")), values, UPCAST)


@triton.jit
def finished(top, total, acc, sink, HAS_SINK: tl.constexpr):
    """Out (M, Dv) with the sink (M,) in its denominator, and the natural log-sum-exp (M,) of the keys.

    Over no key: 0 and -inf.
    """
    lse = tl.where(total > 0, top + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    if HAS_SINK:
        higher = tl.maximum(top, sink)
        acc = acc * tl.exp(top - higher)[:, None]
        total = total * tl.exp(top - higher) + tl.exp(sink - higher)
    return acc / tl.where(total > 0, total, 1.0)[:, None], lse
