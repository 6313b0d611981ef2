"""Lengths of an earlier call: what is built, read and cut where requests stood then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.ground import Key, Row, as_keys
from treeproof.diagnosis.world import World


def _starts(world: World, earlier: VerifyCase) -> list[int]:
    """Of each request where the one at its place stood; where there was none, where it stands."""
    then = [request.prefix_len for request in earlier.requests]
    own = [request.prefix_len for request in world.ground.requests]
    return [*then, *own[len(then) :]][: len(own)]


def _placed(world: World, earlier: VerifyCase) -> World:
    """Positions, slots and lengths."""
    starts, ground = _starts(world, earlier), world.ground
    positions, slots = list(world.positions), list(world.slots)
    for row in ground.rows:
        positions[row.flat] = starts[row.b] + row.depth
        slots[row.flat] = ground.slot(row.b, starts[row.b] + row.row)
    return replace(world, positions=tuple(positions), slots=tuple(slots), lengths=tuple(starts))


def _listed(world: World, earlier: VerifyCase) -> World:
    """Everything that is built, lists and table lines among it."""
    starts, ground = _starts(world, earlier), world.ground

    def keys(row: Row) -> Iterator[Key]:
        start = starts[row.b]
        yield from (ground.key(row.b, column) for column in range(start))
        for r in row.path:
            yield ground.key(row.b, start + r, start + ground.row(row.b, r).depth)

    uncut = tuple(as_keys(keys(row)) for row in ground.rows)
    seen = tuple(
        ground.cut(own, starts[row.b] + row.depth)
        for own, row in zip(uncut, ground.rows, strict=True)
    )
    return replace(_placed(world, earlier), uncut=uncut, seen=seen)


def _prefix_keys(world: World, earlier: VerifyCase) -> World:
    """As many prefix keys as there were, and this call's path."""
    starts, ground = _starts(world, earlier), world.ground

    def keys(row: Row) -> Iterator[Key]:
        yield from (ground.key(row.b, column) for column in range(starts[row.b]))
        yield from (ground.own(row.b, r) for r in row.path)

    uncut = tuple(as_keys(keys(row)) for row in ground.rows)
    seen = tuple(ground.cut(own, row.position) for own, row in zip(uncut, ground.rows, strict=True))
    return replace(world, uncut=uncut, seen=seen)


def _window_edge(world: World, earlier: VerifyCase) -> World:
    starts, ground = _starts(world, earlier), world.ground
    seen = tuple(
        ground.cut(keys, starts[row.b] + row.depth)
        for row, keys in zip(ground.rows, world.uncut, strict=True)
    )
    return replace(world, seen=seen)


OLD_LENGTHS: Mapping[str, Callable[[World, VerifyCase], World]] = {
    "lengths, for all that is built": _listed,
    "lengths, for the prefix that is read": _prefix_keys,
    "lengths, for the window's edge": _window_edge,
}
"""What may go by them."""
