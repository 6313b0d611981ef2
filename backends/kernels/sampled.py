"""Sampled acceptance along a tree: each row's coin decides among its children, a last one draws.

Torch twin: `sample_down` of backends/sampled_walk.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treeproof.backends.kernels.inlined import inlined


@inlined
def _left(weights, at, vocabulary, tokens, index, next_sibling, line, width, refused):
    """What a law leaves at these tokens: all of it but what the refused siblings carry."""
    left = tl.load(weights + at, mask=at < vocabulary, other=0.0)
    child = refused
    looked = 0
    while (child >= 0) & (child < width) & (looked < width):
        row = tl.load(index + line + child)
        token = tl.load(tokens + row, mask=row >= 0, other=-1)
        left = tl.where(at == token, 0.0, left)
        child = tl.load(next_sibling + line + child)
        looked += 1
    return left


@triton.jit(do_not_specialize=["width", "steps", "vocabulary", "law_row"])
def sample_tree(
    tokens,  # (T,)
    probs,  # (T, V) float32
    coins,  # (T,) float32
    final_coins,  # (B,) float32
    index,  # (B, Nmax) batch-global row of each row
    next_token,  # (B, Nmax)
    next_sibling,  # (B, Nmax)
    accept_index,  # out (B, steps + 1), filled with -1
    accept_len,  # out (B,)
    emitted,  # out (B, steps + 1), filled with -1
    width,
    steps,
    vocabulary,
    law_row,  # stride of probs
    single,  # thresholds, the second one above 0
    acc,
    BLOCK: tl.constexpr,  # tokens that are drawn from at once
):
    """Grid: (B,). One program walks one tree, and draws its last token in two passes over a law."""
    b = tl.program_id(0).to(tl.int64)
    line = b * width
    out = b * (steps + 1)
    row = tl.load(index + line)
    tl.store(accept_index + out, row)
    coin = tl.load(coins + row)
    taken = 1
    reached = 0.0
    refused = tl.load(next_token + line)  # the first child of the row that the walk stands on
    child = refused
    looked = 0  # a circle of siblings ends after as many as there are rows
    # A link that leads out of the tables, or to a row that is none, ends the walk as -1 does.
    while (child >= 0) & (child < width) & (taken <= steps) & (looked < width):
        below = tl.load(index + line + child)
        token = tl.load(tokens + below, mask=below >= 0, other=-1)
        known = (token >= 0) & (token < vocabulary)
        share = tl.load(probs + row * law_row + token, mask=known, other=0.0)
        reached += share
        if (share > 0) & ((coin < reached / acc) | (share >= single)):
            tl.store(accept_index + out + taken, below)
            tl.store(emitted + out + taken - 1, token)
            row = below
            coin = tl.load(coins + row)
            taken += 1
            reached = 0.0
            refused = tl.load(next_token + line + child)
            child = refused
            looked = 0
        else:
            looked += 1
            child = tl.load(next_sibling + line + child)
    # As deep as it may go a walk asks nobody, and so refuses nobody.
    refused = tl.where(taken <= steps, refused, -1)
    law = probs + row * law_row
    mass = 0.0
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mass += tl.sum(
            _left(law, at, vocabulary, tokens, index, next_sibling, line, width, refused)
        )
    aim = tl.load(final_coins + b) * mass
    drawn = vocabulary
    last = vocabulary - 1  # where rounding leaves the coin above all: the last that has any mass
    before = 0.0
    start = 0
    while (drawn == vocabulary) & (start < vocabulary):
        at = start + tl.arange(0, BLOCK)
        left = _left(law, at, vocabulary, tokens, index, next_sibling, line, width, refused)
        above = (before + tl.cumsum(left) > aim) & (left > 0)
        drawn = tl.min(tl.where(above, at, vocabulary))
        held = tl.max(tl.where(left > 0, at, -1))
        last = tl.where(held >= 0, held, last)
        before += tl.sum(left)
        start += BLOCK
    tl.store(emitted + out + taken - 1, tl.where(drawn < vocabulary, drawn, last))
    tl.store(accept_len + b, taken)
