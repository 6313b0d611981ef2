"""Moving the K and V of accepted rows to the front of their request, where the next round finds them.

Torch twin: `commit` of backends/topology.py. A path's rows and the homes they move to overlap, so
one program loads a whole path before it stores anything; heads do not overlap.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width", "table_row"])
def compact(
    cache,  # (slots, Hkv, lanes), in place
    accept_index,  # (B, steps + 1)
    homes,  # (T,)
    seq_lens,  # (B,)
    request_slots,  # (B,)
    req_to_token,  # (request slots, columns)
    width,  # steps + 1
    heads,  # Hkv
    slot_step,
    head_step,
    table_row,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (B, Hkv / UNITS). Row j of a path goes to the slot of logical column P + j."""
    b = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * UNITS + tl.arange(0, UNITS).to(tl.int64)
    step, lane = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    row = tl.load(accept_index + b * width + step, mask=step < width, other=-1)
    taken = row >= 0
    source = tl.load(homes + row, mask=taken, other=0)
    table = req_to_token + tl.load(request_slots + b) * table_row + tl.load(seq_lens + b)
    target = tl.load(table + step, mask=taken, other=0)
    at = (head * head_step)[:, None, None] + lane
    inside = (head < heads)[:, None, None] & taken[:, None] & (lane < LANES)
    moved = tl.load(cache + at + source[:, None] * slot_step, mask=inside, other=0)
    # Other threads of this program may still be loading what is stored over.
    tl.debug_barrier()
    tl.store(cache + at + target[:, None] * slot_step, moved, mask=inside)
