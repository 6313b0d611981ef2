"""Functions that kernels call: compiled into them, and plain Python in the interpreter.

The interpreter makes the language anew for each call of a jitted function, which takes about a
millisecond, longer than most tiles. A plain function that a kernel calls finds it made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

from treeproof.backends.adapters.triton_mode import interpreted


def inlined(function: Callable[..., Any]) -> Any:
    """What a kernel calls this function by; one of Triton's library is jitted already."""
    jitted = function if hasattr(function, "fn") else triton.jit(function)
    return jitted.fn if interpreted() else jitted
