"""Attention of all verify rows under the tree mask, in any of its three layouts.

Torch twin: backends/direct_mask.py. The prefix is read through the request's token table and has no
mask; the tree block is read cell by cell. A window is cut by logical index: `positions` of the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import asked, blank, read, row_max, written


@triton.jit(do_not_specialize=["blocks", "units", "window", "table_row"])
def masked_attention(
    q,  # (T, Hq, D)
    k_cache,  # (slots, Hkv, D)
    v_cache,  # (slots, Hkv, Dv)
    out,  # (T, Hq, Dv)
    lse,  # (T, Hq) float32
    mask,  # flat; bytes, or the items of a bit-packed mask
    mask_indptr,  # (B+1,)
    seq_lens,  # (B,)
    qo_indptr,  # (B+1,)
    positions,  # (T,)
    homes,  # (T,) slot of each row; -1 on padding
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    sinks,  # (Hq,) float32
    blocks,  # of BLOCK_M lines, for the request with most rows
    units,  # B * blocks * Hkv
    scale,
    softcap,
    window,  # keys, or more than there are
    q_row, q_head, k_slot, k_head, v_slot, v_head, table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PACKED: tl.constexpr,  # one item of bits a row
    PREFIXED: tl.constexpr,  # the mask has cells for the prefix, which are skipped
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
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
    local, head = line // GROUP, kv_head[:, None] * GROUP + line % GROUP
    real = live[:, None] & (local < rows[:, None])
    row = first[:, None] + local
    queries = asked(q, row, head, real, q_row, q_head, D, BLOCK_D)
    index = tl.load(positions + row, mask=real, other=0)
    top, total, acc = blank(UNITS, BLOCK_M, BLOCK_DV)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    # Columns of a request: its prefix, and then its rows. Prefix keys that the root's window has
    # passed are in no row's window.
    prefix = tl.load(seq_lens + b)
    begin = tl.maximum(prefix - window + 1, 0)
    table = req_to_token + tl.load(request_slots + b) * table_row
    cells = tl.load(mask_indptr + b)
    if PACKED:
        item = tl.load(mask + cells[:, None] + local, mask=real, other=0).to(tl.int64)
    else:
        skipped = prefix if PREFIXED else prefix * 0
        line_begin = (cells + skipped)[:, None] + local * (skipped + rows)[:, None]
    for start in range(0, row_max(prefix - begin + rows, 0), BLOCK_N):
        column = (begin + start)[:, None] + tl.arange(0, BLOCK_N)
        other = column - prefix[:, None]  # local row, from 0 on
        in_prefix, in_tree = other < 0, (other >= 0) & (other < rows[:, None])
        slot = tl.load(table[:, None] + column, mask=in_prefix, other=-1)
        their = tl.load(positions + first[:, None] + other, mask=in_tree, other=0)
        slot = tl.where(
            in_tree, tl.load(homes + first[:, None] + other, mask=in_tree, other=-1), slot
        )
        both = real[:, :, None] & in_tree[:, None, :]
        if PACKED:
            # A bit that does not exist is that of no row.
            seen = ((item[:, :, None] >> tl.minimum(tl.maximum(other, 0), 63)[:, None, :]) & 1) != 0
        else:
            seen = (
                tl.load(mask + line_begin[:, :, None] + other[:, None, :], mask=both, other=0) != 0
            )
        seen = (both & seen) | in_prefix[:, None, :]
        at = tl.where(in_prefix, column, their)
        seen = seen & (at[:, None, :] > index[:, :, None] - window)
        there = (slot >= 0) & (
            row_max(seen.to(tl.int32), 1) > 0
        )  # a padded row's slot may hold anything
        top, total, acc = read(
            top, total, acc, queries, keys, values, tl.maximum(slot, 0), there,
            seen & there[:, None, :], k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST,
            BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    place = row * (KV_HEADS * GROUP) + head
    written(
        top, total, acc, out, lse, sinks, place, head, real, DV, HAS_SINKS, BLOCK_DV
    )  # fmt: skip
