"""Attention of single rows that find their ancestors by walking up the parent links.

Torch twin: backends/topology.py. No mask and no list: the prefix comes from the request's token
table, and the path is met one node at a time. Whether a key is inside the window is told by its
logical index, which on the path is counted down from the row's own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import asked, blank, read, row_max, written


@triton.jit(do_not_specialize=["units", "window", "width", "table_row"])
def linked_attention(
    q,  # (T, Hq, D)
    k_cache,  # (slots, Hkv, D)
    v_cache,  # (slots, Hkv, Dv)
    out,  # (T, Hq, Dv)
    lse,  # (T, Hq) float32
    parents,  # (B, Nmax) local row of the parent; -1 on the root and on padding
    request_of,  # (T,)
    qo_indptr,  # (B+1,)
    seq_lens,  # (B,)
    homes,  # (T,) slot of each row; -1 on padding
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    sinks,  # (Hq,) float32
    units,  # T * Hkv
    scale,
    softcap,
    window,  # keys, or more than there are
    q_row, q_head, k_slot, k_head, v_slot, v_head, width, table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
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
    kv_head, row = unit % KV_HEADS, unit // KV_HEADS
    group = tl.arange(0, BLOCK_M)
    head = kv_head[:, None] * GROUP + group
    real = live[:, None] & (group < GROUP)
    queries = asked(q, row[:, None], head, real, q_row, q_head, D, BLOCK_D)
    top, total, acc = blank(UNITS, BLOCK_M, BLOCK_DV)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    b = tl.load(request_of + row)
    first, prefix = tl.load(qo_indptr + b), tl.load(seq_lens + b)
    table = req_to_token + tl.load(request_slots + b) * table_row
    # Keys of a row: itself and what is above it, then its prefix from where the window begins. A path
    # that is longer than a tile goes on in the next.
    up, mine, node = parents + b * width, homes + first, row - first
    met = tl.full([UNITS], 0, tl.int64)
    climbed = 0  # links that go in a circle end somewhere, too
    start, end = 0, row_max(met, 0) + 1
    while start < end:
        key = start + tl.arange(0, BLOCK_N)
        slot = tl.full([UNITS, BLOCK_N], -1, tl.int64)
        while (row_max(node, 0) >= 0) & (climbed < tl.minimum(start + BLOCK_N, width)):
            on_path = (node >= 0) & (node < width)
            home = tl.load(mine + node, mask=on_path, other=-1)
            slot = tl.where(key == climbed, home[:, None], slot)
            node = tl.load(up + node, mask=on_path, other=-1)
            met += on_path
            climbed += 1
        begin = tl.maximum(prefix + met - window, 0)
        column = (begin - met)[:, None] + key
        in_prefix = (key >= met[:, None]) & (column < prefix[:, None])
        slot = tl.where(key < window, slot, -1)
        slot = tl.load(table[:, None] + column, mask=in_prefix, other=slot)
        there = slot >= 0
        top, total, acc = read(
            top, total, acc, queries, keys, values, tl.maximum(slot, 0), there, there[:, None, :],
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
        left = met + tl.maximum(prefix - begin, 0) + (node >= 0)
        start += BLOCK_N
        end = row_max(left, 0)
    place = (row * (KV_HEADS * GROUP))[:, None] + head
    written(
        top, total, acc, out, lse, sinks, place, head, real, DV, HAS_SINKS, BLOCK_DV
    )  # fmt: skip
