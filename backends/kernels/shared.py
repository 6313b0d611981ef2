"""Attention of all rows of a request over the pages that they share: the first pass of a cascade.

Torch twin: the prefix pass of backends/cascade.py. Each page is read once for a block of lines; the
partial result is for `merging`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import asked, blank, read, row_max, written


@triton.jit(do_not_specialize=["blocks", "units", "table_row"])
def shared_attention(
    q,  # (T, Hq, D)
    k_cache,  # (slots, Hkv, D)
    v_cache,  # (slots, Hkv, Dv)
    out,  # (T, Hq, Dv) float32
    lse,  # (T, Hq) float32
    page_table,  # (B, pages)
    cache_seqlens,  # (B,) keys that the pages hold
    qo_indptr,  # (B+1,)
    blocks,  # of BLOCK_M lines, for the request with most rows
    units,  # B * blocks * Hkv
    scale,
    softcap,
    q_row, q_head, k_slot, k_head, v_slot, v_head, table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Grid: (units / UNITS,). A unit is a block of lines of one request and key-value head."""
    unit = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = unit < units
    unit = tl.minimum(unit, units - 1)
    kv_head, block, b = unit % KV_HEADS, unit // KV_HEADS % blocks, unit // KV_HEADS // blocks
    first = tl.load(qo_indptr + b)
    rows = tl.load(qo_indptr + b + 1) - first
    line = block[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = first[:, None] + line // GROUP, kv_head[:, None] * GROUP + line % GROUP
    real = live[:, None] & (line // GROUP < rows[:, None])
    queries = asked(q, row, head, real, q_row, q_head, D, BLOCK_D)
    top, total, acc = blank(UNITS, BLOCK_M, BLOCK_DV)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    length = tl.load(cache_seqlens + b)
    table = page_table + b * table_row
    for start in range(0, row_max(length, 0), BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        there = key < length[:, None]
        page = tl.load(table[:, None] + key // PAGE, mask=there, other=0)
        slot = page * PAGE + key % PAGE
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, there[:, None, :],
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    place = row * (KV_HEADS * GROUP) + head
    written(top, total, acc, out, lse, q, place, head, real, DV, False, BLOCK_DV)
