"""Putting partial results together by their log-sum-exp.

Torch twin: `merge` of backends/cascade.py. A part over no key has log-sum-exp -inf and counts for
nothing, whatever its output holds; over no key at all the result is 0 and -inf.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_parts(
    parts,  # (n, lines, Dv) float32
    part_lse,  # (n, lines) float32, in base BASE_2 ? 2 : e
    out,  # (lines, Dv)
    lse,  # (lines,) float32, in the same base, without the sink
    sinks,  # (heads,) float32, natural; line i belongs to head i % heads
    heads,
    lines,
    DV: tl.constexpr,
    PARTS: tl.constexpr,  # n
    BASE_2: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Grid: (lines,). All parts are weighed against the largest log-sum-exp."""
    line = tl.program_id(0).to(tl.int64)
    dv = tl.arange(0, BLOCK_DV)
    top = tl.load(part_lse + line)
    for part in range(1, PARTS):
        top = tl.maximum(top, tl.load(part_lse + part * lines + line))
    level = tl.where(top == float("-inf"), 0.0, top)
    total = level * 0.0
    acc = tl.zeros([BLOCK_DV], tl.float32)
    for part in range(PARTS):
        above = tl.load(part_lse + part * lines + line) - level
        weight = tl.exp2(above) if BASE_2 else tl.exp(above)
        values = tl.load(parts + (part * lines + line) * DV + dv, mask=dv < DV, other=0.0)
        # Not even 0 times it: an empty part may hold NaN.
        acc += tl.where(weight > 0, weight * values.to(tl.float32), 0.0)
        total += weight
    some = tl.where(total > 0, total, 1.0)
    log = tl.log2(some) if BASE_2 else tl.log(some)
    tl.store(lse + line, tl.where(total > 0, level + log, float("-inf")))
    if HAS_SINKS:
        sink = tl.load(sinks + line % heads)
        # level is that of the keys; a sink far above them leaves them nothing.
        higher = tl.maximum(level, sink)
        shrunk = tl.exp(level - higher)
        acc = acc * shrunk
        total = total * shrunk + tl.exp(sink - higher)
        some = tl.where(total > 0, total, 1.0)
    tl.store(out + line * DV + dv, (acc / some).to(out.dtype.element_ty), mask=dv < DV)
