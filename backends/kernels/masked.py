"""Attention of all verify rows under the tree mask, in any of its three layouts.

Torch twin: backends/direct_mask.py. The prefix is read through the request's token table and has no
mask; the tree block is read cell by cell. A window is cut by logical index: `positions` of the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import finished, read


@triton.jit
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
    scale,
    softcap,
    window,  # keys, or more than there are
    q_row, q_head, k_slot, k_head, v_slot, v_head, out_row, out_head, table_row,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PACKED: tl.constexpr,  # one item of bits a row
    PREFIXED: tl.constexpr,  # the mask has cells for the prefix, which are skipped
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of BLOCK_M lines, B, Hkv). A line is a row and one query head of the group."""
    block, b, kv_head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(qo_indptr + b)
    rows = tl.load(qo_indptr + b + 1) - first
    if block * BLOCK_M >= rows * GROUP:
        return
    line = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = line // GROUP, kv_head * GROUP + line % GROUP
    real = row < rows
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    queries = tl.load(
        q + (first + row)[:, None] * q_row + head[:, None] * q_head + d,
        mask=real[:, None] & (d < D),
        other=0.0,
    )
    prefix = tl.load(seq_lens + b)
    index = tl.load(positions + first + row, mask=real, other=0)
    table = req_to_token + tl.load(request_slots + b) * table_row
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    # Prefix keys that the root's window has passed are in no row's window.
    begin = tl.maximum(prefix - window + 1, 0)
    for start in range(begin, prefix, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        there = column < prefix
        slot = tl.load(table + column, mask=there, other=0)
        seen = there & (column > index[:, None] - window) & real[:, None]
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, seen,
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    cells = tl.load(mask_indptr + b)
    skipped = prefix if PREFIXED else 0
    for start in range(0, rows, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        there = column < rows
        slot = tl.load(homes + first + column, mask=there, other=-1)
        there = there & (slot >= 0)
        slot = tl.maximum(slot, 0)
        both = real[:, None] & there
        if PACKED:
            item = tl.load(mask + cells + row, mask=real, other=0).to(tl.int64)
            seen = both & (((item[:, None] >> tl.minimum(column, 63).to(tl.int64)) & 1) != 0)
        else:
            cell = cells + row[:, None] * (skipped + rows) + skipped + column
            seen = tl.load(mask + cell, mask=both, other=0) != 0
        their = tl.load(positions + first + column, mask=there, other=0)
        seen = seen & (their > index[:, None] - window)
        there = tl.max(seen.to(tl.int32), 0) > 0  # the slot of a padded row may hold anything
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, seen,
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    sink = top
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0)
    result, natural = finished(top, total, acc, sink, HAS_SINKS)
    tl.store(
        out + (first + row)[:, None] * out_row + head[:, None] * out_head + dv,
        result.to(out.dtype.element_ty),
        mask=real[:, None] & (dv < DV),
    )
    tl.store(lse + (first + row) * (GROUP * tl.num_programs(2)) + head, natural, mask=real)
