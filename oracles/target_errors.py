"""How far off the operations of a model in working precision may be, each by itself: plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

U_32 = 2.0**-24


@dataclass(frozen=True)
class Errors:
    """Unit roundoffs, named as in the bound of one attention; each is 0 where nothing is rounded.

    `unit`: of everything but attention. `handed`: of queries, keys and values on their way to it.
    `mul`: of the factors of its scores; `p` and `v`: of its weights and values; `acc`: of its sums;
    `merged`: of its partial results, all merges together; `out`: of its output; `tanh`: what a softcap
    of 1 is off by: six roundings.
    """

    unit: float = U_32
    acc: float = U_32
    handed: float = 0.0
    mul: float = 0.0
    p: float = 0.0
    v: float = 0.0
    merged: float = 0.0
    out: float = 0.0
    tanh: float = 6 * U_32


FLOAT32 = Errors()


def angle_share(base: float) -> float:
    """What an angle that is taken in float32 may be off by, relative to itself.

    base ** exponent carries the exponent's rounding times ln(base), the exponent being 1 at most. Five
    further roundings: the power's (two), its reciprocal, the product with the index, and that of the
    cosine or sine.
    """
    return (math.log(base) + 5) * U_32
