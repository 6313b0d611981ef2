"""Work units without an end: a soak draws on until its time is over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from treeproof.generate.profiles import PROFILES
from treeproof.generate.units import BLOCK, WorkUnit


def endless_units(profile: str, run_seed: int, dtype: str | None = None) -> Iterator[WorkUnit]:
    """Full units of all shape groups in turn, block after block.

    It begins with the units of a bounded run of this seed that has as many full blocks.
    """
    for block in count():
        for group in range(len(PROFILES[profile].groups)):
            yield WorkUnit(profile, run_seed, group, block, BLOCK, dtype)
