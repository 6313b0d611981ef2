"""The hash and the numbers of `data`, a Triton kernel each, bit for bit: on a GPU they would take
longer than what is checked with them. Imported where they are made on CUDA, and nowhere else.

Torch twins: `hash_tensor` and `normal` of `data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_WORDS = 3
"""Tensors of an address that one launch takes in."""

_BLOCK = 512

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
_PIECES_MEAN = tl.constexpr(2 * (2**16 - 1))


@triton.jit
def _mixed(state):
    state += _GAMMA
    state = (state ^ (state >> 30)) * _MIX_1
    state = (state ^ (state >> 27)) * _MIX_2
    return state ^ (state >> 31)


_STRIDES = [f"{word}_{step}" for word in ("first", "second", "third") for step in ("row", "column")]


# Compiled once for each number of words, whatever lies where.
@triton.jit(
    do_not_specialize=["start", "count", "columns", *_STRIDES],
    do_not_specialize_on_alignment=["out", "first", "second", "third"],
)
def hash_cells(
    out,  # (count,) int64, count = rows * columns
    first,  # int64; a word of the cell (row, column) lies at row * stride + column * stride
    second,
    third,
    start,  # int64: hash of the plain words before
    count,
    columns,
    first_row,
    first_column,
    second_row,
    second_column,
    third_row,
    third_column,
    WORDS: tl.constexpr,  # how many of the three there are
    BLOCK: tl.constexpr,
):
    """Grid: (count / BLOCK,)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    row, column = at // columns, at % columns
    state = tl.load(first + row * first_row + column * first_column, mask=live, other=0) ^ start
    bits = _mixed(state.to(tl.uint64, bitcast=True))
    if WORDS > 1:
        word = tl.load(second + row * second_row + column * second_column, mask=live, other=0)
        bits = _mixed(bits ^ word.to(tl.uint64, bitcast=True))
    if WORDS > 2:
        word = tl.load(third + row * third_row + column * third_column, mask=live, other=0)
        bits = _mixed(bits ^ word.to(tl.uint64, bitcast=True))
    tl.store(out + at, bits.to(tl.int64, bitcast=True), mask=live)


@triton.jit(do_not_specialize=["start"], do_not_specialize_on_alignment=["owner", "index"])
def fill_rows(
    out,  # (tokens, HEADS, LANES), any float dtype, contiguous
    owner,  # (tokens,) int64
    index,  # (tokens,) int64
    start,  # int64: hash of the plain words before owner, index, head and lane
    factors,  # (2,) float64: what the sum of pieces is multiplied by, one after the other
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (tokens, HEADS * LANES / BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(owner + token) ^ start
    bits = _mixed(state.to(tl.uint64, bitcast=True))
    bits = _mixed(bits ^ tl.load(index + token).to(tl.uint64, bitcast=True))
    bits = _mixed(bits ^ (at // LANES).to(tl.uint64))
    bits = _mixed(bits ^ (at % LANES).to(tl.uint64))
    total = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48)
    number = (total.to(tl.int64) - _PIECES_MEAN).to(tl.float64)
    number = number * tl.load(factors) * tl.load(factors + 1)
    # By way of float32, as torch converts a float64.
    rounded = number.to(tl.float32).to(out.dtype.element_ty)
    tl.store(out + token * (HEADS * LANES) + at, rounded, mask=at < HEADS * LANES)


def hashed(start: int, words: Sequence[Tensor]) -> Tensor:
    """`words`, at most MOST_WORDS of at most two dimensions, hashed on from `start` (an int64)."""
    shape = np.broadcast_shapes(*(word.shape for word in words))
    out = torch.empty(shape, dtype=torch.int64, device=words[0].device)
    rows, columns = (1, 1, *shape)[-2:]
    laid = [word.expand(rows, columns) for word in words]
    laid += laid[:1] * (MOST_WORDS - len(laid))
    if out.numel():
        hash_cells[triton.cdiv(out.numel(), _BLOCK),](
            out, *laid, start, out.numel(), columns, *(n for word in laid for n in word.stride()),
            WORDS=len(words), BLOCK=_BLOCK,
        )  # fmt: skip
    return out


def fill(
    out: Tensor, owner: Tensor, index: Tensor, start: int, scale: float, factor: float
) -> None:
    """`out` (tokens, heads, lanes): its numbers, from the hash `start` of all words before them."""
    heads, lanes = out.shape[1:]
    block = min(1024, triton.next_power_of_2(heads * lanes))
    fill_rows[len(out), triton.cdiv(heads * lanes, block)](
        out, owner, index, start, _factors(scale, factor, out.device),
        HEADS=heads, LANES=lanes, BLOCK=block,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _factors(scale: float, factor: float, device: torch.device) -> Tensor:
    return torch.tensor([scale, factor], dtype=torch.float64, device=device)
