"""Decoding of single rows: the pages of their request's prefix, then a list of slots a row.

Torch twins: backends/page_table.py, and backends/swa_window.py where there are lists only. A tree's
paths do not come in whole pages, so behind the prefix a key is a page of its own. Keys can be split
over programs; `merging` puts the parts together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import asked, blank, read, row_max, written


@triton.jit(do_not_specialize=["rows", "units", "splits", "table_row"])
def paged_attention(
    q,  # (T, Hq, D)
    k_cache,  # (slots, Hkv, D)
    v_cache,  # (slots, Hkv, Dv)
    out,  # (splits, T, Hq, Dv): the dtype of q, or float32 where it is partial
    lse,  # (splits, T, Hq) float32
    page_table,  # (B, pages)
    cache_seqlens,  # (B,) keys that the pages hold
    request_of,  # (T,)
    kv_indices,  # slots, flat
    kv_indptr,  # (T+1,)
    kv_start,  # (T,) entries of a list that the window has passed
    sinks,  # (Hq,) float32
    rows,  # T
    units,  # splits * T * Hkv
    splits,  # parts of equal length that the keys of each row are read in
    scale,
    softcap,
    q_row, q_head, k_slot, k_head, v_slot, v_head, table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,  # 0: lists only
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Grid: (units / UNITS,). A unit is the query heads of one row and key-value head."""
    unit = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = unit < units
    unit = tl.minimum(unit, units - 1)
    kv_head, row, split = unit % KV_HEADS, unit // KV_HEADS % rows, unit // KV_HEADS // rows
    group = tl.arange(0, BLOCK_M)
    head = kv_head[:, None] * GROUP + group
    real = live[:, None] & (group < GROUP)
    queries = asked(q, row[:, None], head, real, q_row, q_head, D, BLOCK_D)
    top, total, acc = blank(UNITS, BLOCK_M, BLOCK_DV)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    own = tl.load(kv_indptr + row) + tl.load(kv_start + row)
    length = tl.load(kv_indptr + row + 1) - own
    if PAGE:
        b = tl.load(request_of + row)
        pages, paged = page_table + b * table_row, tl.load(cache_seqlens + b)
        length += paged
        own -= paged
    part = (length + splits - 1) // splits
    begin = split * part
    end = tl.minimum(length, begin + part)
    for start in range(0, row_max(end - begin, 0), BLOCK_N):
        key = (begin + start)[:, None] + tl.arange(0, BLOCK_N)
        there = key < end[:, None]
        if PAGE:
            in_page = key < paged[:, None]
            page = tl.load(pages[:, None] + key // PAGE, mask=there & in_page, other=0)
            slot = tl.load(
                kv_indices + own[:, None] + key, mask=there & (key >= paged[:, None]), other=0
            )
            slot = tl.where(in_page, page * PAGE + key % PAGE, slot)
        else:
            slot = tl.load(kv_indices + own[:, None] + key, mask=there, other=0)
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, there[:, None, :],
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    place = ((split * rows + row) * (KV_HEADS * GROUP))[:, None] + head
    written(
        top, total, acc, out, lse, sinks, place, head, real, DV, HAS_SINKS, BLOCK_DV
    )  # fmt: skip
