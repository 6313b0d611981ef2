"""The numbers of `data` in one Triton kernel, bit for bit: on a GPU they would take longer than what
is checked with them. Imported where data are made on CUDA, and nowhere else.

Torch twin: `normal` of `data`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
_PIECES_MEAN = tl.constexpr(2 * (2**16 - 1))


@triton.jit
def _mixed(state):
    state += _GAMMA
    state = (state ^ (state >> 30)) * _MIX_1
    state = (state ^ (state >> 27)) * _MIX_2
    return state ^ (state >> 31)


@triton.jit
def fill_rows(
    out,  # (tokens, HEADS, LANES), any float dtype, contiguous
    states,  # (tokens,) int64: hash of all words of the address but head and lane
    factors,  # (2,) float64: what the sum of pieces is multiplied by, one after the other
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (tokens, HEADS * LANES / BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(states + token).to(tl.uint64, bitcast=True)
    bits = _mixed(state ^ (at // LANES).to(tl.uint64))
    bits = _mixed(bits ^ (at % LANES).to(tl.uint64))
    total = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48)
    number = (total.to(tl.int64) - _PIECES_MEAN).to(tl.float64)
    number = number * tl.load(factors) * tl.load(factors + 1)
    # By way of float32, as torch converts a float64.
    rounded = number.to(tl.float32).to(out.dtype.element_ty)
    tl.store(out + token * (HEADS * LANES) + at, rounded, mask=at < HEADS * LANES)
