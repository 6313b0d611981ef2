"""Putting partial results together by their log-sum-exp.

Torch twin: `merge` of backends/cascade.py. A part over no key has log-sum-exp -inf and counts for
nothing, whatever its output holds; over no key at all the result is 0 and -inf.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads", "lines"])
def merge_parts(
    parts,  # (n, lines, Dv)
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
    UNITS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Grid: (lines / UNITS,). All parts are weighed against the largest log-sum-exp."""
    line = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = line < lines
    line = tl.minimum(line, lines - 1)
    dv = tl.arange(0, BLOCK_DV)
    inside = live[:, None] & (dv < DV)
    top = tl.load(part_lse + line)
    for part in range(1, PARTS):
        top = tl.maximum(top, tl.load(part_lse + part * lines + line))
    level = tl.where(top == float("-inf"), 0.0, top)
    total = tl.full([UNITS], 0.0, tl.float32)
    acc = tl.full([UNITS, BLOCK_DV], 0.0, tl.float32)
    for part in range(PARTS):
        above = tl.load(part_lse + part * lines + line) - level
        weight = tl.exp2(above) if BASE_2 else tl.exp(above)
        at = parts + (part * lines + line)[:, None] * DV + dv
        # Nothing of an empty part is read: it may hold NaN.
        values = tl.load(at, mask=inside & (weight > 0)[:, None], other=0.0)
        acc += weight[:, None] * values.to(tl.float32)
        total += weight
    some = tl.where(total > 0, total, 1.0)
    log = tl.log2(some) if BASE_2 else tl.log(some)
    tl.store(lse + line, tl.where(total > 0, level + log, float("-inf")), mask=live)
    if HAS_SINKS:
        sink = tl.load(sinks + line % heads)
        # A sink far above the keys leaves them nothing; over no key it is all there is.
        higher = tl.maximum(level, sink)
        shrunk = tl.exp(level - higher)
        acc = acc * shrunk[:, None]
        some = total * shrunk + tl.exp(sink - higher)
        some = tl.where(some > 0, some, 1.0)
    result = (acc / some[:, None]).to(out.dtype.element_ty)
    tl.store(out + line[:, None] * DV + dv, result, mask=inside)
