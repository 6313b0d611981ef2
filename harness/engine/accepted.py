"""How deep walks go: drafts accepted by a backend, and those that the oracle accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from treeproof.contract.event import MOST_DEPTHS, Acceptance, Way

Taken = tuple[int, float]
"""Drafts that a walk takes, and how often it counts."""


def counted(way: Way, expected: Iterable[Taken], observed: Iterable[Taken]) -> Acceptance:
    return Acceptance(way=way, expected=_by_depth(expected), observed=_by_depth(observed))


def once(drafts: Iterable[int]) -> list[Taken]:
    """Walks that count once each."""
    return [(count, 1.0) for count in drafts]


def together(one: Acceptance | None, other: Acceptance) -> Acceptance:
    if one is None:
        return other
    return Acceptance(
        way=other.way,
        expected=_sums(one.expected, other.expected),
        observed=_sums(one.observed, other.observed),
    )


def _by_depth(walks: Iterable[Taken]) -> tuple[float, ...]:
    """What a wrong backend says to have taken is none, or more than there is: it is cut off."""
    ends = [0.0] * (MOST_DEPTHS + 1)
    for drafts, weight in walks:
        ends[min(max(drafts, 0), MOST_DEPTHS)] += weight
    while len(ends) > 1 and not ends[-1]:
        ends.pop()
    return tuple(sum(ends[depth:]) for depth in range(len(ends)))


def _sums(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0.0))
