"""From the selected candidates to rows, positions, links and the mask.

Torch twin: the builds of backends/*.py, each in its own way. Two kernels: the first finds every
row's parent by the pool index of its beam and walks up from it, which gives depth and mask; the second
needs all parents, and links the children.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def parent_row(selected, width, parent_list, cells, topk, row, WIDTH: tl.constexpr):
    """Local row above `row` of one request; -1 above the root, and where the parent is not selected.

    `selected` (width,) pool indices of rows 1, 2, ...; `parent_list` (cells,) pool indices of beams.
    """
    found = tl.full([], -1, tl.int64)
    if row > 0:
        pool = tl.load(selected + row - 1)
        beam = pool // topk
        if beam == 0:
            found = tl.full([], 0, tl.int64)
        elif beam < cells:
            wanted = tl.load(parent_list + beam)
            place = tl.arange(0, WIDTH)
            others = tl.load(selected + place, mask=place < width, other=-1)
            at = tl.where((others == wanted) & (place < width), place + 1, WIDTH + 1)
            lowest = tl.min(at, 0)
            found = tl.where(lowest <= width, lowest, -1).to(tl.int64)
    return found


@triton.jit
def build_rows(
    selected_index,  # (B, Nmax-1)
    parent_list,  # (B, cells)
    drafted,  # (B, Nmax-1)
    bonus,  # (B,)
    num_nodes,  # (B,)
    qo_indptr,  # (B+1,)
    seq_lens,  # (B,)
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    mask,  # flat; bytes, or the items of a bit-packed mask
    mask_indptr,  # (B+1,)
    tokens,  # out (T,)
    positions,  # out (T,)
    homes,  # out (T,)
    index,  # out (B, Nmax)
    parents,  # out (B, Nmax)
    width,  # Nmax
    cells,
    topk,
    steps,
    pad_slot,
    table_row,
    PACKED: tl.constexpr,
    PREFIXED: tl.constexpr,
    FILL_PREFIX: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of two, at least Nmax
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: (Nmax, B). Rows past a request's own only get -1 in the (B, Nmax) tables."""
    row, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = tl.load(qo_indptr + b)
    rows = tl.load(qo_indptr + b + 1) - first
    nodes, prefix = tl.load(num_nodes + b), tl.load(seq_lens + b)
    cell = b * width + row
    real = row < nodes
    tl.store(index + cell, tl.where(real, first + row, -1))
    if row >= rows:
        tl.store(parents + cell, -1)
        return
    selected = selected_index + b * (width - 1)
    beams = parent_list + b * cells
    column = tl.arange(0, WIDTH)
    seen = column == 0  # a padded row sees the root
    up = tl.full([], -1, tl.int64)
    depth = tl.full([], 0, tl.int64)
    if real:
        up = parent_row(selected, width - 1, beams, cells, topk, row, WIDTH)
        seen = column == row
        node = up
        while (node >= 0) & (depth < steps):
            depth += 1
            seen = seen | (column == node)
            node = parent_row(selected, width - 1, beams, cells, topk, node, WIDTH)
    tl.store(parents + cell, up)
    token = tl.load(bonus + b)
    if row > 0:
        token = tl.load(drafted + b * (width - 1) + row - 1)
    slot = tl.full([], 0, tl.int64) + pad_slot
    if real:
        slot = tl.load(req_to_token + tl.load(request_slots + b) * table_row + prefix + row)
    tl.store(tokens + first + row, tl.where(real, token, 0))
    tl.store(positions + first + row, tl.where(real, prefix + depth, 0))
    tl.store(homes + first + row, slot)
    begin = tl.load(mask_indptr + b)
    if PACKED:
        item = tl.sum(tl.where(seen, tl.full([WIDTH], 1, tl.int64) << column.to(tl.int64), 0), 0)
        tl.store(mask + begin + row, item.to(mask.dtype.element_ty))
    else:
        skipped = prefix if PREFIXED else 0
        line = mask + begin + row * (skipped + rows)
        if FILL_PREFIX:
            for start in range(0, skipped, BLOCK):
                far = start + tl.arange(0, BLOCK)
                tl.store(line + far, tl.full([BLOCK], 1, tl.uint8), mask=far < skipped)
        tl.store(line + skipped + column, seen.to(tl.uint8), mask=column < rows)


@triton.jit
def link_children(
    parents,  # (B, Nmax)
    next_token,  # out (B, Nmax)
    next_sibling,  # out (B, Nmax)
    width,
    WIDTH: tl.constexpr,
):
    """Grid: (Nmax, B). Siblings in ascending row order."""
    row, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    up = tl.load(parents + b * width + column, mask=column < width, other=-1)
    own = tl.load(parents + b * width + row)
    child = tl.min(tl.where(up == row, column, WIDTH), 0)
    sibling = tl.min(tl.where((up == own) & (own >= 0) & (column > row), column, WIDTH), 0)
    tl.store(next_token + b * width + row, tl.where(child < WIDTH, child, -1))
    tl.store(next_sibling + b * width + row, tl.where(sibling < WIDTH, sibling, -1))


@triton.jit
def list_rows(
    cells,  # out, flat
    line_begin,  # (T,) first cell of each row's line
    first_key,  # (T,) logical index that a line begins with
    shared_from,  # (B,) first prefix key that lines leave out; P_b where they leave out none
    parents,  # (B, Nmax)
    request_of,  # (T,)
    qo_indptr,  # (B+1,)
    num_nodes,  # (B,)
    positions,  # (T,)
    homes,  # (T,)
    seq_lens,  # (B,)
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    width,
    table_row,
    BLOCK: tl.constexpr,
):
    """Slots of the keys of one row in logical order: of the prefix, then from its ancestors to itself.

    Grid: (T,). A padded row's line is its request's root.
    """
    row = tl.program_id(0).to(tl.int64)
    b = tl.load(request_of + row)
    root, prefix = tl.load(qo_indptr + b), tl.load(seq_lens + b)
    first, shared = tl.load(first_key + row), tl.load(shared_from + b)
    line = cells + tl.load(line_begin + row)
    table = req_to_token + tl.load(request_slots + b) * table_row
    if row - root >= tl.load(num_nodes + b):
        tl.store(line, tl.load(homes + root))
    else:
        for start in range(first, shared, BLOCK):
            key = start + tl.arange(0, BLOCK)
            slot = tl.load(table + key, mask=key < shared, other=0)
            tl.store(line + key - first, slot, mask=key < shared)
        node, key = row - root, tl.load(positions + row)
        before = tl.maximum(shared - first, 0)
        begin = tl.maximum(first, prefix)
        while (node >= 0) & (key >= begin):
            tl.store(line + before + key - begin, tl.load(homes + root + node))
            node = tl.load(parents + b * width + node)
            key -= 1
