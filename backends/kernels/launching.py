"""How large the tiles of a launch are."""

from __future__ import annotations

import triton

from treeproof.backends.adapters.triton_mode import interpreted

_CELLS = 1 << 18
"""Cells of the largest tile of an interpreted program; Triton allows four times as many."""


def at_once(units: int, tile: int) -> int:
    """How many units of at most `tile` cells one program takes: a power of two.

    Compiled it takes one. Each step of a program costs the interpreter the same, whatever its size,
    so there a program takes all that it can hold.
    """
    if not interpreted():
        return 1
    fitting = max(1, _CELLS // triton.next_power_of_2(tile))
    return int(min(triton.next_power_of_2(units), fitting))
