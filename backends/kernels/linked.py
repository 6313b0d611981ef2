"""Attention of single rows that find their ancestors by walking up the parent links.

Torch twin: backends/topology.py. No mask and no list: the prefix comes from the request's token
table, and the path is met one node at a time. Whether a key is inside the window is told by its
logical index, which on the path is counted down from the row's own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.softmax import finished, read


@triton.jit
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
    scale,
    softcap,
    window,  # keys, or more than there are
    q_row, q_head, k_slot, k_head, v_slot, v_head, width, table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Grid: (T, Hkv)."""
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + group
    real = group < GROUP
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    queries = tl.load(
        q + row * q_row + head[:, None] * q_head + d,
        mask=real[:, None] & (d < D),
        other=0.0,
    )
    b = tl.load(request_of + row)
    first, prefix = tl.load(qo_indptr + b), tl.load(seq_lens + b)
    up = parents + b * width
    depth, node = 0, tl.load(up + row - first)
    while (node >= 0) & (depth < width):  # links that go in a circle end somewhere, too
        depth += 1
        node = tl.load(up + node)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    keys, values = k_cache + kv_head * k_head, v_cache + kv_head * v_head
    table = req_to_token + tl.load(request_slots + b) * table_row
    begin = tl.maximum(prefix + depth - window + 1, 0)
    for start in range(begin, prefix, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        there = column < prefix
        slot = tl.load(table + column, mask=there, other=0)
        seen = there & real[:, None]
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, seen,
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    # The row itself and what is above it, as many as the window holds, a tile at a time.
    node, met, reach = row - first, 0, tl.minimum(depth + 1, window)
    while (node >= 0) & (met < reach):
        slot = tl.full([BLOCK_N], -1, tl.int64)
        lane = tl.arange(0, BLOCK_N)
        gathered = 0
        while (node >= 0) & (met < reach) & (gathered < BLOCK_N):
            slot = tl.where(lane == gathered, tl.load(homes + first + node), slot)
            node = tl.load(up + node)
            gathered += 1
            met += 1
        there = slot >= 0
        slot = tl.maximum(slot, 0)
        seen = there & real[:, None]
        top, total, acc = read(
            top, total, acc, queries, keys, values, slot, there, seen,
            k_slot, v_slot, scale, softcap, D, DV, CAPPED, UPCAST, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    sink = top
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0)
    result, natural = finished(top, total, acc, sink, HAS_SINKS)
    place = row * HEADS + head
    tl.store(
        out + place[:, None] * DV + dv,
        result.to(out.dtype.element_ty),
        mask=real[:, None] & (dv < DV),
    )
    tl.store(lse + place, natural, mask=real)
