"""Keys: K and V that are read from different slots, one place or one slot apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import hypothesis
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World

_NAMES = {"k": "keys", "v": "values"}


@hypothesis("keys-not-values", "keys and values are read from different slots", "attend", "forward")
def keys_not_values(right: World) -> Iterator[tuple[str, World]]:
    ground, slots = right.ground, right.ground.case.layout.num_slots

    def turned(keys: tuple[Key, ...], by: int) -> list[int]:
        """The slots of a list, some places on."""
        held = [k.v for k in keys]
        return [held[(i + by) % len(held)] for i in range(len(held))]

    for side in ("k", "v"):
        name = {"k": "keys", "v": "values"}[side]
        for by in (1, -1):
            seen = tuple(
                tuple(
                    k._replace(**{side: slot})
                    for k, slot in zip(keys, turned(keys, by), strict=True)
                )
                for keys in right.seen
            )
            yield f"{name} {by:+d} place in the list", replace(right, seen=seen)
            moved = tuple(
                tuple(k._replace(**{side: (k.v + by) % slots}) for k in keys) for keys in right.seen
            )
            yield f"{name} {by:+d} slot in memory", replace(right, seen=moved)
        backwards = tuple(
            tuple(
                k._replace(**{side: other.v}) for k, other in zip(keys, reversed(keys), strict=True)
            )
            for keys in right.seen
        )
        yield f"{name} in reverse order", replace(right, seen=backwards)
        for where, other in neighbours(ground):
            theirs = tuple(
                tuple(
                    k._replace(**{side: ground.key(other(row.b), k.at).v})
                    if k.at < row.prefix
                    else k
                    for k in keys
                )
                for row, keys in zip(ground.rows, right.seen, strict=True)
            )
            yield f"{name} of {where}", replace(right, seen=theirs)
    for side in ("k", "v"):
        for by in (1, -1):
            prefix = tuple(
                tuple(
                    k._replace(**{side: head[(i + by) % len(head)].v}) if k.at < row.prefix else k
                    for i, k in enumerate(keys)
                    for head in [[p for p in keys if p.at < row.prefix]]
                )
                for row, keys in zip(ground.rows, right.seen, strict=True)
            )
            name = {"k": "keys", "v": "values"}[side]
            yield f"{name} of the prefix {by:+d}", replace(right, seen=prefix)
    for by in (1, -1):
        tree = tuple(
            tuple(
                k._replace(k=path[(i + by) % len(path)].v) if k.at >= row.prefix else k
                for i, k in _numbered(keys, row)
                for path in [[p for p in keys if p.at >= row.prefix]]
            )
            for row, keys in zip(ground.rows, right.seen, strict=True)
        )
        yield f"keys of the path {by:+d}", replace(right, seen=tree)
    yield from _in_lines(right)
    yield from _in_columns(right)


def _in_lines(right: World) -> Iterator[tuple[str, World]]:
    """Lists are lines as wide as the longest, filled up with their first slot, and turned as wholes."""
    rows = right.ground.rows
    fronts = [
        sum(k.at < row.prefix for k in keys) for keys, row in zip(right.seen, rows, strict=True)
    ]
    for part, begins in (("list", [0] * len(rows)), ("path", fronts)):
        lengths = [len(keys) - begin for keys, begin in zip(right.seen, begins, strict=True)]
        for among, widths in (
            ("the launch", [max(lengths)] * len(rows)),
            (
                "its request",
                [
                    max(n for n, r in zip(lengths, rows, strict=True) if r.b == row.b)
                    for row in rows
                ],
            ),
        ):
            for by, side in product((1, -1), ("k", "v")):
                seen = []
                for keys, begin, width in zip(right.seen, begins, widths, strict=True):
                    line = [k.v for k in keys[begin:]]
                    line += line[:1] * (width - len(line))
                    turned = [
                        k._replace(**{side: line[(i + by) % width]})
                        for i, k in enumerate(keys[begin:])
                    ]
                    seen.append((*keys[:begin], *turned))
                yield (
                    f"{_NAMES[side]} {by:+d} place in a {part} as wide as the longest of {among}",
                    replace(right, seen=tuple(seen)),
                )


def _in_columns(right: World) -> Iterator[tuple[str, World]]:
    """The same among the columns of the request, whether a row reads them or not.

    They begin with the first that any of its rows reads, and those of padded rows are the root's.
    """
    ground = right.ground
    columns = []
    for b, request in enumerate(ground.requests):
        keys = [keys for row, keys in zip(ground.rows, right.seen, strict=True) if row.b == b]
        first = min((key.at for line in keys for key in line), default=0)
        own = [ground.own(b, r).v for r in range(request.num_nodes)]
        prefix = [key.v for key in ground.prefix(b)[first:]]
        columns.append([*prefix, *own, *own[:1] * request.pad_rows])
    for by, side in product((1, -1), ("k", "v")):
        seen = tuple(
            tuple(
                k._replace(**{side: line[(line.index(k.v) + by) % len(line)]}) if k.v in line else k
                for k in keys
            )
            for row, keys in zip(ground.rows, right.seen, strict=True)
            for line in [columns[row.b]]
        )
        yield f"{_NAMES[side]} {by:+d} among the columns of the request", replace(right, seen=seen)


def _numbered(keys: tuple[Key, ...], row: Row) -> Iterator[tuple[int, Key]]:
    """Keys with their place in the path; what is before it counts below 0."""
    first = sum(k.at < row.prefix for k in keys)
    for i, key in enumerate(keys):
        yield i - first, key
