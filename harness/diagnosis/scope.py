"""Where a law holds: in some rows, in some query heads, for some of the keys; elsewhere, softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from treeproof.diagnosis.ground import Ground, Key, Row
from treeproof.diagnosis.law import SOFTMAX, Law, is_own

Which = Callable[[Sequence[Key], Row], Tensor]
"""(n,) bool: the keys that a law is for."""


@dataclass(frozen=True)
class Scope:
    """None: all of them. Only what is said key by key may hold for some keys."""

    rows: Callable[[Row], bool] | None = None
    heads: frozenset[int] | None = None
    keys: Which | None = None


EVERYWHERE = Scope()


def some_heads(count: int, group: int) -> dict[str, frozenset[int]]:
    """Ways to pick from `count` query heads, `group` to a KV head. Those that pick all are among them:
    a case may have one head only."""
    ways: dict[str, range] = {
        "the first head": range(1),
        "all heads but the first": range(1, count),
        "the last head": range(count - 1, count),
        "all heads but the last": range(count - 1),
        "heads of the first KV head": range(group),
        "heads past the first KV head": range(group, count),
        "heads of the last KV head": range(count - group, count),
        "odd heads": range(1, count, 2),
        "even heads": range(0, count, 2),
        "the first half of the heads": range(count // 2),
        "the second half of the heads": range(count // 2, count),
    }
    return {name: frozenset(heads) for name, heads in ways.items() if heads}


def _of_prefix(keys: Sequence[Key], row: Row) -> Tensor:
    return ~is_own(keys, row)


_PREFIX, _TREE = Scope(keys=_of_prefix), Scope(keys=is_own)


def scopes(ground: Ground, law: Law) -> Iterator[tuple[str, Scope]]:
    """Every part of a launch that a law may be confined to."""
    last = len(ground.requests) - 1
    ends = [request.num_nodes - 1 for request in ground.requests]
    rows: dict[str, Callable[[Row], bool]] = {
        "in the root's row only": lambda row: row.row == 0,
        "in all rows but the root's": lambda row: row.row > 0,
        "in each request's last row only": lambda row: row.row == ends[row.b],
        "in the first request only": lambda row: row.b == 0,
        "past the first request": lambda row: row.b > 0,
        "in the last request only": lambda row: row.b == last,
    }
    for where, holds in rows.items():
        if any(map(holds, ground.rows)):
            yield where, Scope(rows=holds)
    shape = ground.case.shape
    for which, heads in some_heads(shape.num_q_heads, shape.group_size).items():
        yield f"in {which}", Scope(heads=heads)
    if law == replace(SOFTMAX, score=law.score, cap=law.cap, distance=law.distance):
        yield "for keys of the prefix", _PREFIX
        yield "for keys of the tree", _TREE
