"""The greedy walk: from the root to the child that holds what the target predicted, until none does.

Torch twin: `accept` of backends/topology.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width", "steps"])
def accept_greedily(
    tokens,  # (T,)
    predicted,  # (T,)
    index,  # (B, Nmax) batch-global row of each row
    next_token,  # (B, Nmax)
    next_sibling,  # (B, Nmax)
    accept_index,  # out (B, steps + 1), filled with -1
    accept_len,  # out (B,)
    emitted,  # out (B, steps + 1), filled with -1
    width,
    steps,
):
    """Grid: (B,). One program walks one tree: what it does next depends on what it has found."""
    b = tl.program_id(0).to(tl.int64)
    line = b * width
    out = b * (steps + 1)
    row = tl.load(index + line)
    wanted = tl.load(predicted + row)
    tl.store(accept_index + out, row)
    tl.store(emitted + out, wanted)
    taken = 1
    child = tl.load(next_token + line)
    looked = 0  # a circle of siblings ends after as many as there are rows
    # A link that leads out of the tables, or to a row that is none, ends the walk as -1 does.
    while (child >= 0) & (child < width) & (taken <= steps) & (looked < width):
        row = tl.load(index + line + child)
        if tl.load(tokens + row, mask=row >= 0, other=-1) == wanted:
            wanted = tl.load(predicted + row)
            tl.store(accept_index + out + taken, row)
            tl.store(emitted + out + taken, wanted)
            taken += 1
            looked = 0
            child = tl.load(next_token + line + child)
        else:
            looked += 1
            child = tl.load(next_sibling + line + child)
    tl.store(accept_len + b, taken)
