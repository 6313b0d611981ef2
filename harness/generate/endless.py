"""Work units without an end: a soak draws on until its time is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from treeproof.contract.case import VerifyCase
from treeproof.generate import scripts
from treeproof.generate.profiles import PROFILES
from treeproof.generate.units import BLOCK, WorkUnit


def endless_units(profile: str, run_seed: int, dtype: str | None = None) -> Iterator[WorkUnit]:
    """Full units of all shape groups in turn, block after block.

    It begins with the units of a bounded run of this seed that has as many full blocks.
    """
    for block in count():
        for group in range(len(PROFILES[profile].groups)):
            yield WorkUnit(profile, run_seed, group, block, BLOCK, dtype)


@dataclass(frozen=True)
class Script:
    """One script, and the unit that it was drawn in."""

    name: str
    case: VerifyCase


def endless_scripts(profile: str, run_seed: int, dtype: str | None = None) -> Iterator[Script]:
    """Those of full units of scripts, block after block; a block is drawn when its first is asked for."""
    for block in count():
        unit = scripts.ScriptUnit(profile, run_seed, block, scripts.BLOCK, dtype=dtype)
        for case in scripts.draw_scripts(unit):
            yield Script(unit.name, case)
