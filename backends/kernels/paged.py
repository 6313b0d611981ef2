"""Attention of single rows over a line of a table each: pages or slots, in one piece or in several.

Torch twins: backends/page_table.py (a line a row, pages of one key) and backends/swa_window.py (a
list a row, cut where the row's window begins). With a line a request it is the prefix pass of
backends/cascade.py. Keys can be split over programs; `merging.merge_splits` puts them together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import finished, read


@triton.jit
def paged_attention(
    q,  # (T, Hq, D)
    k_cache,  # (slots, Hkv, D)
    v_cache,  # (slots, Hkv, Dv)
    out,  # (splits, T, Hq, Dv): the dtype of q, or float32 where it is partial
    lse,  # (splits, T, Hq) float32
    table,  # page ids, flat
    line_begin,  # (T,) first cell of each row's line in `table`
    first_key,  # (T,) place in the line of the first key that is read
    last_key,  # (T,) where it ends
    sinks,  # (Hq,) float32
    rows,
    keys_a_split,
    scale,
    softcap,
    q_row, q_head, k_slot, k_head, v_slot, v_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Grid: (T, Hkv, splits). The query heads of a group share each tile of keys."""
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + group
    real = group < GROUP
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    queries = tl.load(
        q + row * q_row + head[:, None] * q_head + d,
        mask=real[:, None] & (d < D),
        other=0.0,
    )
    line = table + tl.load(line_begin + row)
    begin = tl.load(first_key + row) + split * keys_a_split
    end = tl.minimum(tl.load(last_key + row), begin + keys_a_split)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        there = key < end
        slot = tl.load(line + key // PAGE, mask=there, other=0) * PAGE + key % PAGE
        seen = there & real[:, None]
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, seen,
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    sink = top
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0)
    result, natural = finished(top, total, acc, sink, HAS_SINKS)
    place = (split * rows + row) * HEADS + head
    tl.store(
        out + place[:, None] * DV + dv,
        result.to(out.dtype.element_ty),
        mask=real[:, None] & (dv < DV),
    )
    tl.store(lse + place, natural, mask=real)
