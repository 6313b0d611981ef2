"""One tile of keys at a time into a running softmax: what every attention kernel here is made of.

A program takes U units at once, each with keys of its own (compiled one, interpreted many): a unit is
M lines that share their keys, a line one query head of one row. The state of a softmax is the largest
score `top` (U, M), the sum of weights `total` (U, M) and the weighted values `acc` (U, M, Dv).
"""

from __future__ import annotations

import triton.language as tl

from treeproof.backends.kernels.inlined import inlined

row_max, row_sum = inlined(tl.max), inlined(tl.sum)


@inlined
def product(a, b, UPCAST: tl.constexpr):
    """Matrix products of two stacks of tiles, in full precision where they are float32.

    UPCAST: in float32 whatever they are, which changes no factor. The interpreter needs it: NumPy
    would add up in float16.
    """
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    # Compiled, a program takes one unit: a matrix, as products of stacks go past the matrix units.
    left = tl.reshape(a, [a.shape[1], a.shape[2]])
    right = tl.reshape(b, [b.shape[1], b.shape[2]])
    return tl.reshape(tl.dot(left, right, input_precision="ieee"), [1, a.shape[1], b.shape[2]])


@inlined
def capped(scores, softcap):
    """`softcap * tanh(scores / softcap)`, by the exponential of a number that is never positive."""
    x = scores / softcap
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return softcap * tl.where(x < 0, -t, t)


@inlined
def blank(UNITS: tl.constexpr, M: tl.constexpr, DV: tl.constexpr):
    """The state before the first tile."""
    top = tl.full([UNITS, M], float("-inf"), tl.float32)
    total = tl.full([UNITS, M], 0.0, tl.float32)
    return top, total, tl.full([UNITS, M, DV], 0.0, tl.float32)


@inlined
def asked(q, row, head, real, q_row, q_head, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Queries (U, M, D) of line (row, head), both (U, M); 0 where it is not real."""
    d = tl.arange(0, BLOCK_D)
    at = q + row * q_row + head * q_head
    return tl.load(at[:, :, None] + d, mask=real[:, :, None] & (d < D), other=0.0)


@inlined
def read(
    top,
    total,
    acc,
    queries,  # (U, M, D)
    k,  # (U,) where the keys of a unit's head begin in the cache
    v,
    slot,  # (U, N) of one tile of keys
    there,  # (U, N) False: no key; nothing is read
    seen,  # (U, M or 1, N)
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
    """The state after a tile of keys and values out of the cache.

    Weights are rounded to the dtype of the values, as matrix units take them.
    """
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    at = (k[:, None] + slot * k_slot)[:, None, :] + d[:, None]
    keys = tl.load(at, mask=there[:, None, :] & (d < D)[:, None], other=0.0)
    at = (v[:, None] + slot * v_slot)[:, :, None] + dv
    values = tl.load(at, mask=there[:, :, None] & (dv < DV), other=0.0)
    scores = product(queries, keys, UPCAST) * scale
    if CAPPED:
        scores = capped(scores, softcap)
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, row_max(scores, 2))
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp(scores - level[:, :, None])
    kept = tl.exp(top - level)
    total = total * kept + row_sum(weights, 2)
    acc = acc * kept[:, :, None] + product(weights.to(values.dtype), values, UPCAST)
    return higher, total, acc


@inlined
def written(
    top,
    total,
    acc,
    out,
    lse,
    sinks,
    place,  # (U, M) line of `out` and `lse`
    head,  # (U, M)
    real,  # (U, M)
    DV: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Store output, the sink in its denominator, and natural log-sum-exp of the keys alone.

    Over no key: 0 and -inf.
    """
    dv = tl.arange(0, BLOCK_DV)
    some = tl.where(total > 0, total, 1.0)
    natural = tl.where(total > 0, top + tl.log(some), float("-inf"))
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0)
        # A sink far above the keys leaves them nothing; over no key it is all there is.
        level = tl.where(total > 0, top, 0.0)
        higher = tl.maximum(level, sink)
        shrunk = tl.exp(level - higher)
        acc = acc * shrunk[:, :, None]
        some = total * shrunk + tl.exp(sink - higher)
        some = tl.where(some > 0, some, 1.0)
    result = (acc / some[:, :, None]).to(out.dtype.element_ty)
    inside = real[:, :, None] & (dv < DV)
    tl.store(out + place[:, :, None] * DV + dv, result, mask=inside)
    tl.store(lse + place, natural, mask=real)
