"""From the selected candidates to rows, positions, links and the mask.

Torch twin: the builds of backends/*.py, each in its own way. Two kernels: the first finds every
row's parent by the pool index of its beam; the second needs all parents, walks up from each row, which
gives depth and mask, and links the children.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.inlined import inlined
from treeproof.backends.kernels.softmax import row_max, row_sum

row_min = inlined(tl.min)


@triton.jit(do_not_specialize=["units", "width", "beams", "topk", "pad_slot", "table_row"])
def find_parents(
    selected_index,  # (B, Nmax-1)
    parent_list,  # (B, beams)
    drafted,  # (B, Nmax-1)
    bonus,  # (B,)
    num_nodes,  # (B,)
    qo_indptr,  # (B+1,)
    seq_lens,  # (B,)
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    tokens,  # out (T,)
    homes,  # out (T,)
    index,  # out (B, Nmax)
    parents,  # out (B, Nmax)
    units,  # B * Nmax
    width,  # Nmax
    beams,
    topk,
    pad_slot,
    table_row,
    UNITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (units / UNITS,). A unit is a row; past a request's own there are only cells of -1.

    A parent that is not selected is -1; where it is selected twice, the first row is.
    """
    cell = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = cell < units
    b, row = tl.minimum(cell, units - 1) // width, cell % width
    first, nodes = tl.load(qo_indptr + b), tl.load(num_nodes + b)
    real = live & (row < nodes)
    drawn = real & (row > 0)
    line = b * (width - 1)
    pool = tl.load(selected_index + line + row - 1, mask=drawn, other=0)
    beam = pool // topk
    known = drawn & (beam > 0) & (beam < beams)
    wanted = tl.load(parent_list + b * beams + beam, mask=known, other=-1)
    lowest = tl.full([UNITS], 0, tl.int64) + width
    for start in range(0, width - 1, BLOCK):
        place = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = place < (nodes - 1)[:, None]
        others = tl.load(selected_index + line[:, None] + place, mask=inside, other=-1)
        at = tl.where(inside & (others == wanted[:, None]), place + 1, width)
        lowest = tl.minimum(lowest, row_min(at, 1))
    found = tl.where(known & (wanted >= 0) & (lowest < width), lowest, -1)
    up = tl.where(drawn & (beam == 0), 0, found)
    tl.store(parents + cell, up, mask=live)
    tl.store(index + cell, tl.where(real, first + row, -1), mask=live)
    token = tl.load(drafted + line + row - 1, mask=drawn, other=0)
    token = tl.where(row == 0, tl.load(bonus + b), token)
    table = req_to_token + tl.load(request_slots + b) * table_row + tl.load(seq_lens + b)
    slot = tl.load(table + row, mask=real, other=0)
    launched = live & (row < tl.load(qo_indptr + b + 1) - first)
    tl.store(tokens + first + row, token, mask=launched)
    tl.store(homes + first + row, tl.where(real, slot, pad_slot), mask=launched)


@triton.jit(do_not_specialize=["units", "width", "steps"])
def build_rows(
    parents,  # (B, Nmax)
    num_nodes,  # (B,)
    qo_indptr,  # (B+1,)
    seq_lens,  # (B,)
    mask,  # out, flat; bytes, or the items of a bit-packed mask
    mask_indptr,  # (B+1,)
    positions,  # out (T,)
    next_token,  # out (B, Nmax)
    next_sibling,  # out (B, Nmax)
    units,  # B * Nmax
    width,  # Nmax
    steps,
    PACKED: tl.constexpr,
    PREFIXED: tl.constexpr,
    FILL_PREFIX: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of two, at least Nmax
    UNITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (units / UNITS,). A unit is a row. Siblings are linked in ascending row order."""
    cell = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = cell < units
    b, row = tl.minimum(cell, units - 1) // width, cell % width
    first, prefix = tl.load(qo_indptr + b), tl.load(seq_lens + b)
    rows = tl.load(qo_indptr + b + 1) - first
    real = live & (row < tl.load(num_nodes + b))
    launched = live & (row < rows)
    line = parents + b * width
    column = tl.arange(0, WIDTH).to(tl.int64)
    up = tl.load(line[:, None] + column, mask=column[None, :] < width, other=-1)
    own = tl.load(parents + cell, mask=live, other=-1)
    child = row_min(tl.where(up == row[:, None], column, WIDTH), 1)
    beside = (up == own[:, None]) & (own >= 0)[:, None] & (column > row[:, None])
    sibling = row_min(tl.where(beside, column, WIDTH), 1)
    tl.store(next_token + cell, tl.where(child < WIDTH, child, -1), mask=live)
    tl.store(next_sibling + cell, tl.where(sibling < WIDTH, sibling, -1), mask=live)
    # A padded row sees the root.
    seen = column == tl.where(real, row, 0)[:, None]
    depth = tl.full([UNITS], 0, tl.int64)
    node = tl.where(real, own, -1)
    climbed = 0
    while (row_max(node, 0) >= 0) & (climbed < steps):
        depth += (node >= 0).to(tl.int64)
        seen = seen | (column == node[:, None])
        node = tl.load(line + node, mask=node >= 0, other=-1)
        climbed += 1
    tl.store(positions + first + row, tl.where(real, prefix + depth, 0), mask=launched)
    begin = tl.load(mask_indptr + b)
    if PACKED:
        bits = tl.full([WIDTH], 1, tl.int64) << column
        item = row_sum(tl.where(seen, bits, 0), 1).to(mask.dtype.element_ty)
        tl.store(mask + begin + row, item, mask=launched)
    else:
        skipped = prefix if PREFIXED else prefix * 0
        at = mask + begin + row * (skipped + rows)
        if FILL_PREFIX:
            for start in range(0, row_max(skipped, 0), BLOCK):
                far = start + tl.arange(0, BLOCK)
                inside = launched[:, None] & (far < skipped[:, None])
                tl.store(at[:, None] + far, tl.full([UNITS, BLOCK], 1, tl.uint8), mask=inside)
        inside = launched[:, None] & (column < rows[:, None])
        tl.store((at + skipped)[:, None] + column, seen.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["units", "width", "table_row"])
def list_rows(
    cells,  # out, flat
    line_begin,  # (T+1,) first cell of each row's line
    first_key,  # (B,) logical index that the lines of a request begin with
    shared_from,  # (B,) first prefix key that they leave out; P_b where they leave out none
    parents,  # (B, Nmax)
    request_of,  # (T,)
    qo_indptr,  # (B+1,)
    num_nodes,  # (B,)
    positions,  # (T,)
    homes,  # (T,)
    seq_lens,  # (B,)
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    units,  # T
    width,
    table_row,
    UNITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Slots of the keys of one row in logical order: of the prefix, then from the root to itself.

    Grid: (units / UNITS,). A unit is a row; a padded row's line is its request's root.
    """
    row = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = row < units
    row = tl.minimum(row, units - 1)
    b = tl.load(request_of + row)
    root, prefix = tl.load(qo_indptr + b), tl.load(seq_lens + b)
    real = row - root < tl.load(num_nodes + b)
    first = tl.load(first_key + b)
    front = tl.where(real & live, tl.load(shared_from + b) - first, 0)
    line = cells + tl.load(line_begin + row)
    table = req_to_token + tl.load(request_slots + b) * table_row
    for start in range(0, row_max(front, 0), BLOCK):
        key = start + tl.arange(0, BLOCK)
        inside = key < front[:, None]
        slot = tl.load((table + first)[:, None] + key, mask=inside, other=0)
        tl.store(line[:, None] + key, slot, mask=inside)
    line += front
    node = tl.where(real, row - root, 0)
    place = tl.where(real, tl.load(positions + row) - prefix, 0)
    place = tl.where(live, place, -1)
    while row_max(place, 0) >= 0:
        inside = (place >= 0) & (node >= 0)
        tl.store(line + place, tl.load(homes + root + node, mask=inside, other=0), mask=inside)
        node = tl.load(parents + b * width + node, mask=inside, other=-1)
        place -= 1
