"""A hypothesis: a name, one sentence, and what would be so in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

from treeproof.diagnosis.engine import Inside
from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row, Seen, as_keys
from treeproof.diagnosis.kept import Kept, Replayed
from treeproof.diagnosis.scope import scopes
from treeproof.diagnosis.world import World


@dataclass(frozen=True)
class Variant:
    """One way in which a hypothesis may hold; `detail` says which, and is the same on every case.

    `family`: which of the hypothesis' families it came from.
    """

    detail: str
    world: World
    family: int = 0


States = Callable[[World], Iterable[tuple[str, World]]]
"""From the truth on a case to (detail, world) of each way in which the hypothesis may hold there."""


Narrow = Literal["rows", "requests", "no"]


@dataclass(frozen=True)
class Hypothesis:
    """`says` is a whole sentence without its full stop. `groups`: evidence it may change.

    `narrow`: whether it may hold in some requests and rows alone (a law: in some heads and for some
    keys too), in some requests, or nowhere but everywhere. `throughout`: further ways, that hold for
    the whole batch if at all. `families`: what `states` gives, in parts; a way that is known is made
    again out of its own part alone.
    """

    name: str
    says: str
    groups: frozenset[Group]
    states: States
    narrow: Narrow = "rows"
    throughout: States | None = None
    families: tuple[States, ...] = ()

    def variants(self, right: World, family: int | None = None) -> Iterator[Variant]:
        """Every way on one case, or those of one family; first those that hold for the whole batch."""
        for number, states in enumerate(self.families or (self.states,)):
            if family in (None, number):
                yield from _VARIANTS.of(
                    *(self, states, right), make=partial(self._replayed, number, states, right)
                )

    def _replayed(self, number: int, states: States, right: World) -> Replayed[Variant]:
        found = self._of(states, right)
        return Replayed(replace(one, family=number) for one in found) if number else Replayed(found)

    def _of(self, states: States, right: World) -> Iterator[Variant]:
        wide = []
        for detail, world in states(right):
            yield Variant(detail, world)
            wide.append((detail, world))
        if self.throughout is not None:
            for detail, world in self.throughout(right):
                yield Variant(detail, world)
        for detail, world in wide:
            for where, part in self._narrower(right, world):
                yield Variant(f"{detail}, {where}" if detail else where, part)

    def _narrower(self, right: World, world: World) -> Iterator[tuple[str, World]]:
        """The same in a part of the launch only."""
        if self.narrow != "no" and _is_by_row(right, world):
            yield from _parts(right, world, self.narrow)
            if "forward" in self.groups:
                yield from _layers(right, world)
        elif self.narrow == "rows" and _is_a_law(right, world):
            for where, scope in scopes(right.ground, world.law):
                yield where, replace(world, scope=scope)


_VARIANTS: Kept[Replayed[Variant]] = Kept(1024)
"""A case is gone through again where parts are explained, and by each backend that fails on it."""


@dataclass(frozen=True)
class Candidate:
    """A hypothesis in one of its ways; both are the same on every case."""

    hypothesis: Hypothesis
    detail: str
    family: int = 0
    rival: bool = False


def hypothesis(
    name: str,
    says: str,
    *groups: Group,
    narrow: Narrow = "rows",
    throughout: States | None = None,
) -> Callable[[States], Hypothesis]:
    """Decorator: a function of the truth becomes the hypothesis of this name."""
    return lambda states: Hypothesis(name, says, frozenset(groups), states, narrow, throughout)


def in_families(
    name: str, says: str, groups: frozenset[Group], families: Iterable[States]
) -> Hypothesis:
    """A hypothesis of many ways, in families that are made again one by one; nowhere narrower."""
    every = tuple(families)

    def states(right: World) -> Iterator[tuple[str, World]]:
        for of in every:
            yield from of(right)

    return Hypothesis(name, says, groups, states, "no", families=every)


def reading(right: World, keys_of: Callable[[Row], Iterable[Key] | None]) -> World:
    """Rows read these keys before the window cuts; None: as they should."""
    ground = right.ground
    uncut, seen = [], []
    for i, row in enumerate(ground.rows):
        keys = keys_of(row)
        if keys is None:
            uncut.append(right.uncut[i])
            seen.append(right.seen[i])
        else:
            uncut.append(as_keys(keys))
            seen.append(ground.cut(uncut[-1], row.position))
    return replace(right, uncut=tuple(uncut), seen=tuple(seen))


def cutting(right: World, kept: Callable[[Row, tuple[Key, ...]], Iterable[Key]]) -> World:
    """The window keeps these of the keys that a row would read without it."""
    seen = tuple(
        as_keys(kept(row, keys)) for row, keys in zip(right.ground.rows, right.uncut, strict=True)
    )
    return replace(right, seen=seen)


def _parts(right: World, world: World, narrow: Narrow) -> Iterator[tuple[str, World]]:
    """The same in some requests only, or in some rows of each request."""
    last = len(right.ground.requests) - 1
    ends = [request.num_nodes - 1 for request in right.ground.requests]
    places: dict[str, Callable[[Row], bool]] = {}
    if last > 0:
        places |= {
            "in the first request only": lambda row: row.b == 0,
            "in the second request only": lambda row: row.b == 1,
            "in the last request only": lambda row: row.b == last,
            "past the first request": lambda row: row.b > 0,
        }
    if narrow == "rows" and max(ends) > 0:
        places |= {
            "in each request's last row only": lambda row: row.row == ends[row.b],
            "in the root's row only": lambda row: row.row == 0,
            "in all rows but the root's": lambda row: row.row > 0,
        }
    for where, holds in places.items():
        yield where, within(right, world, holds)


def _layers(right: World, world: World) -> Iterator[tuple[str, World]]:
    """The same in some layers of an engine only, where all it states is which keys are read."""
    model = right.ground.model
    if model is None or model.layers == 1 or world.positions is not right.positions:
        return
    last = model.layers - 1
    places = {"in the first layer only": {0}, "past the first layer": set(range(1, last + 1))}
    if last > 1:
        places["in the last layer only"] = {last}
    every = frozenset(range(model.heads))
    for where, layers in places.items():
        yield where, replace(right, inside=Inside(frozenset(layers), every, world.seen))


def _is_a_law(right: World, world: World) -> bool:
    """Whether numbers are all that is stated otherwise, so that it may be so in a part of them."""
    return world.law is not right.law and all(
        getattr(world, f.name) is getattr(right, f.name) for f in fields(world) if f.name != "law"
    )


_NOT_BY_ROW = (
    "lengths", "links", "written", "left", "walks", "commits", "law", "heads", "contract",
    "inside", "looked_up", "select", "draft", "extend", "drawing", "adjusting", "layered",
)  # fmt: skip


def _is_by_row(right: World, world: World) -> bool:
    """Whether each row is stated by itself, so that the statement may hold for some of them."""
    return all(getattr(world, name) is getattr(right, name) for name in _NOT_BY_ROW)


def within(right: World, world: World, where: Callable[[Row], bool]) -> World:
    """`world` in the rows where this holds and the truth in all others."""
    rows = right.ground.rows
    chosen = [where(row) for row in rows]

    def mixed(a: Seen, b: Seen) -> Seen:
        return tuple(x if inside else y for x, y, inside in zip(a, b, chosen, strict=True))

    positions, slots = list(right.positions), list(right.slots)
    for row, inside in zip(rows, chosen, strict=True):
        if inside:
            positions[row.flat], slots[row.flat] = world.positions[row.flat], world.slots[row.flat]
    return replace(
        world,
        tokens=tuple(
            a if inside else b
            for a, b, inside in zip(world.tokens, right.tokens, chosen, strict=True)
        ),
        positions=tuple(positions),
        slots=tuple(slots),
        uncut=mixed(world.uncut, right.uncut),
        seen=mixed(world.seen, right.seen),
    )
