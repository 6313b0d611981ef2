"""Work units of scripts: fixed lists, whose seeds decide what is drawn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hypothesis import given, seed, strategies
from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from treeproof.contract.case import VerifyCase
from treeproof.generate.profiles import settings_of
from treeproof.generate.script_groups import SCRIPT_GROUPS
from treeproof.generate.scripts import scripts

BLOCK = len(SCRIPT_GROUPS)
"""Scripts of a full unit: one of each group."""


@dataclass(frozen=True)
class ScriptUnit:
    """`count` scripts, one of each of as many groups; the same ones whenever and wherever it is drawn.
    `rounds` None: drawn."""

    profile: str
    seed: int
    """Seed of the run."""
    block: int
    count: int
    rounds: int | None = None
    dtype: str | None = None
    """Of every script; None: that of its group."""

    @property
    def name(self) -> str:
        fixed = "" if self.rounds is None else f"{self.rounds}-"
        return f"{self.profile}-{self.seed}-rounds-{fixed}{self.block}"


def script_units(
    profile: str, run_seed: int, cases: int, dtype: str | None = None
) -> list[ScriptUnit]:
    """The units of a run of so many scripts, in a fixed order."""
    return [
        ScriptUnit(profile, run_seed, block, min(BLOCK, cases - block * BLOCK), dtype=dtype)
        for block in range(-(-cases // BLOCK))
    ]


def draw_scripts(unit: ScriptUnit) -> list[VerifyCase]:
    """The cases of a unit. Hypothesis only generates: it neither mutates, shrinks nor saves."""
    found: list[VerifyCase] = []

    @strategies.composite
    def next_script(choose: DrawFn) -> VerifyCase:
        # The first example is the simplest there is, whatever the seed, and is dropped below.
        group = SCRIPT_GROUPS[max(0, len(found) - 1) % BLOCK]
        return choose(scripts(group, unit.rounds))

    @seed(int.from_bytes(hashlib.blake2b(unit.name.encode(), digest_size=8).digest(), "big"))
    @settings_of(unit.profile, examples=unit.count + 1)
    @given(next_script())
    def collect(case: VerifyCase) -> None:
        found.append(case)

    collect()
    kept = found[-unit.count :]
    if unit.dtype is None:
        return kept
    return [replace(case, shape=replace(case.shape, dtype=unit.dtype)) for case in kept]
