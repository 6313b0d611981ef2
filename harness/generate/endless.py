"""Work units without an end: a soak draws on until its time is over. Each is made from its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from treeproof.contract.case import VerifyCase
from treeproof.generate import script_units
from treeproof.generate.profiles import PROFILES
from treeproof.generate.units import BLOCK, WorkUnit


def endless_unit(number: int, profile: str, run_seed: int, dtype: str | None = None) -> WorkUnit:
    """A full unit; all shape groups in turn, block after block.

    The first are the units of a bounded run of this seed that has as many full blocks.
    """
    block, group = divmod(number, len(PROFILES[profile].groups))
    return WorkUnit(profile, run_seed, group, block, BLOCK, dtype)


@dataclass(frozen=True)
class Script:
    """One script, and the unit that it was drawn in."""

    name: str
    case: VerifyCase


def endless_script(number: int, profile: str, run_seed: int, dtype: str | None = None) -> Script:
    """That of full units of scripts, block after block; a block is drawn whole."""
    block, index = divmod(number, script_units.BLOCK)
    unit = script_units.ScriptUnit(profile, run_seed, block, script_units.BLOCK, dtype=dtype)
    return Script(unit.name, _scripts(unit)[index])


@lru_cache(maxsize=4)
def _scripts(unit: script_units.ScriptUnit) -> tuple[VerifyCase, ...]:
    return tuple(script_units.draw_scripts(unit))
