"""Work units: a run as a fixed list of small draws, each reproducible from itself alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
from hypothesis import given, seed, strategies
from hypothesis.strategies import DrawFn

from treeproof.contract.case import VerifyCase
from treeproof.generate.cases import Focus, cases
from treeproof.generate.lengths import WINDOW_CLASSES
from treeproof.generate.profiles import PROFILES, Profile, settings_of
from treeproof.generate.shapes import ShapeGroup
from treeproof.generate.topologies import TOPOLOGIES

BLOCK = 9
"""Cases of a full unit. Odd, so that the cycles of `focus_of` do not fall into step with it."""

# Far prefixes are dear and come once in sixteen cases each; one in five prefixes is ordinary.
_PREFIXES = (
    "random",
    "page-1",
    "zero",
    "window",
    "page+1",
    "random",
    "window-1",
    "page",
    "one",
    "window+1",
    "random",
    "page+1",
    "long",
    "zero",
    "page-1",
    "context-limit",
)


_DEAR = {"long": 2.5, "context-limit": 5.0}
"""What a case with such a prefix takes, beside one of an ordinary case (profile ci, one core)."""


@dataclass(frozen=True)
class WorkUnit:
    """`count` cases of one shape group; the same cases whenever and wherever it is drawn."""

    profile: str
    seed: int
    """Seed of the run."""
    group: int
    """Index into the groups of the profile."""
    block: int
    count: int
    dtype: str | None = None
    """Overrides the dtype of the group."""

    @property
    def name(self) -> str:
        return f"{self.profile}-{self.seed}-{self.shape.name}-{self.block}"

    @property
    def shape(self) -> ShapeGroup:
        return PROFILES[self.profile].groups[self.group]

    @property
    def cost(self) -> float:
        """About how long it takes, an ordinary case being 1; known before it is drawn."""
        return sum(_DEAR.get(focus_of(self, i).prefix or "", 1.0) for i in range(self.count))


def units(
    profile: str, run_seed: int, examples: int | None = None, dtype: str | None = None
) -> list[WorkUnit]:
    """The units of a run of `examples` cases (those of the profile if None), in a fixed order.

    Cases are spread evenly: each unit of a longer list starts with the cases that it has in a
    shorter one of as many units.
    """
    own = PROFILES[profile]
    total = own.cases if examples is None else examples
    blocks = -(-total // (len(own.groups) * BLOCK))
    places = [(group, block) for block in range(blocks) for group in range(len(own.groups))]
    counts = [total // len(places) + (i < total % len(places)) for i in range(len(places))]
    return [
        WorkUnit(profile, run_seed, group, block, count, dtype)
        for (group, block), count in zip(places, counts, strict=True)
        if count
    ]


def draw(unit: WorkUnit) -> list[VerifyCase]:
    """The cases of a unit. Hypothesis only generates: it neither mutates, shrinks nor saves."""
    found: list[VerifyCase] = []

    @strategies.composite
    def next_case(choose: DrawFn) -> VerifyCase:
        # The first example of Hypothesis is the simplest there is, whatever the seed; it is the
        # same for all units of a group and is dropped below.
        index = max(0, len(found) - 1)
        return choose(cases(unit.shape, unit.profile, focus_of(unit, index)))

    @seed(_seed_of(unit))
    @settings_of(unit.profile, examples=unit.count + 1)
    @given(next_case())
    def collect(case: VerifyCase) -> None:
        found.append(case)

    collect()
    kept = found[-unit.count :]
    if unit.dtype is None:
        return kept
    return [_in_dtype(case, unit.dtype) for case in kept]


def _seed_of(unit: WorkUnit) -> int:
    return int.from_bytes(hashlib.blake2b(unit.name.encode(), digest_size=8).digest(), "big")


def _in_dtype(case: VerifyCase, dtype: str) -> VerifyCase:
    shape = msgspec.structs.replace(case.shape, dtype=dtype)
    return msgspec.structs.replace(case, shape=shape)


def focus_of(unit: WorkUnit, index: int) -> Focus:
    """What case `index` of a unit must have, so that no event class is left to chance."""
    own = PROFILES[unit.profile]
    place = unit.block * len(own.groups) + unit.group
    i = place * BLOCK + index
    return Focus(
        topology=list(TOPOLOGIES)[i % len(TOPOLOGIES)],
        rows=_pinned_rows(own, unit, index),
        prefix=_PREFIXES[i % len(_PREFIXES)],
        window=WINDOW_CLASSES[(place + index) % len(WINDOW_CLASSES)],
        # Two and two, so that both kinds have pinned row counts; every other group begins plain.
        plain=(index // 2 + unit.group) % 2 == 0,
    )


def _pinned_rows(own: Profile, unit: WorkUnit, index: int) -> int | None:
    """Every other case has a pinned row count, in turn over the groups that can take it.

    The first cases of all groups go through the counts before the second ones do, so that a short
    run has most of them too.
    """
    if index % 2:
        return None
    most = unit.shape.most_rows
    peers = [g for g, group in enumerate(own.groups) if group.most_rows == most]
    able = [rows for rows in own.pinned_rows if most is None or rows <= most]
    pins = -(-BLOCK // 2)
    turn = (unit.block * pins + index // 2) * len(peers) + peers.index(unit.group)
    return able[turn % len(able)]
