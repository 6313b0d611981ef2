"""Worlds in which rows read other keys for their prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treeproof.diagnosis.ground import Ground, Key, Row
from treeproof.diagnosis.hypothesis import reading
from treeproof.diagnosis.world import World


def path_keys(ground: Ground, row: Row) -> tuple[Key, ...]:
    return tuple(ground.own(row.b, r) for r in row.path)


def with_prefix(right: World, prefix: Callable[[Row], Sequence[Key]]) -> World:
    """Each row reads this in place of its prefix, and its path."""
    ground = right.ground
    return reading(right, lambda row: [*prefix(row), *path_keys(ground, row)])
