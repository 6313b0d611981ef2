"""Worlds in which rows read other keys for their prefix, or other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from treeproof.diagnosis.ground import Ground, Key, Row
from treeproof.diagnosis.hypothesis import reading
from treeproof.diagnosis.world import World


def path_keys(ground: Ground, row: Row) -> tuple[Key, ...]:
    return tuple(ground.own(row.b, r) for r in row.path)


def with_prefix(right: World, prefix: Callable[[Row], Sequence[Key]]) -> World:
    """Each row reads this in place of its prefix, and its path."""
    ground = right.ground
    return reading(right, lambda row: [*prefix(row), *path_keys(ground, row)])


def rows_read(right: World, rows_of: Callable[[Row], Iterable[int]]) -> World:
    """Each row reads the whole prefix and these rows of its request."""
    ground = right.ground
    return reading(right, lambda row: ground.reads(row, tuple(rows_of(row))))


def row_count(right: World, row: Row) -> int:
    return len(right.ground.by_request[row.b])
