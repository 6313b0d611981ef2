"""Visibility: which rows of its tree a row reads, where not its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.listing import path_keys, row_count, rows_read
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend", "forward")


@hypothesis(
    "causal-mask",
    "a row reads all rows up to its own, a plain causal mask instead of the tree's",
    *_GROUPS,
)
def causal_mask(right: World) -> Iterator[tuple[str, World]]:
    yield "", rows_read(right, lambda row: range(row.row + 1))


@hypothesis("no-mask", "a row reads all rows of its request, without any mask", *_GROUPS)
def no_mask(right: World) -> Iterator[tuple[str, World]]:
    yield "", rows_read(right, lambda row: range(row_count(right, row)))


@hypothesis("sibling-visible", "a row also reads its siblings", *_GROUPS)
def sibling_visible(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def siblings(row: Row) -> list[int]:
        return [r.row for r in ground.by_request[row.b] if row.row and r.parent == row.parent]

    choices: dict[str, Callable[[Row], list[int]]] = {
        "": lambda row: siblings(row),
        "earlier ones": lambda row: [r for r in siblings(row) if r < row.row],
        "later ones": lambda row: [r for r in siblings(row) if r > row.row],
        "the one before": lambda row: [r for r in siblings(row) if r < row.row][-1:],
        "the first": lambda row: siblings(row)[:1],
        "all rows of its depth": lambda row: [
            r.row for r in ground.by_request[row.b] if r.depth == row.depth
        ],
        "siblings of its ancestors too": lambda row: [
            r for a in row.path for r in siblings(ground.row(row.b, a))
        ],
        "siblings of its parent": lambda row: [
            r for a in row.path[-2:-1] for r in siblings(ground.row(row.b, a))
        ],
    }
    for detail, extra in choices.items():

        def with_extra(row: Row, extra: Callable[[Row], list[int]] = extra) -> Iterable[int]:
            return dict.fromkeys([*row.path, *extra(row)])

        yield detail, rows_read(right, with_extra)
    # One more step down its own list: the row after it, where that is a sibling.
    yield (
        "the row after it, where a sibling",
        rows_read(right, lambda row: [*row.path, *(r for r in siblings(row) if r == row.row + 1)]),
    )
    yield (
        "the row before it, where a sibling",
        rows_read(right, lambda row: [*row.path, *(r for r in siblings(row) if r == row.row - 1)]),
    )


@hypothesis("self-hidden", "a row does not read its own key", *_GROUPS)
def self_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", rows_read(right, lambda row: row.path[:-1])
    yield "the root excepted", rows_read(right, lambda row: row.path[:-1] if row.row else row.path)


@hypothesis("root-hidden", "rows do not read the root's key", *_GROUPS)
def root_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", rows_read(right, lambda row: row.path[1:])
    yield "the root excepted", rows_read(right, lambda row: row.path[1:] if row.row else row.path)
    yield (
        "two levels down and deeper",
        rows_read(right, lambda row: row.path[1:] if row.depth > 1 else row.path),
    )


@hypothesis("parent-hidden", "a row does not read its parent's key", *_GROUPS)
def parent_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", rows_read(right, lambda row: [r for r in row.path if r != row.parent])
    yield (
        "where that is not the root",
        rows_read(right, lambda row: [r for r in row.path if r != row.parent or r == 0]),
    )
    yield "nor any other ancestor's", rows_read(right, lambda row: row.path[-1:])
    yield (
        "nor any other ancestor's but the root's",
        rows_read(right, lambda row: dict.fromkeys((0, row.row))),
    )


@hypothesis(
    "ancestor-hidden", "a row does not read an ancestor further up than its parent", *_GROUPS
)
def ancestor_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "the grandparent", rows_read(right, lambda row: [*row.path[:-3], *row.path[-2:]])
    yield (
        "the grandparent, where that is not the root",
        rows_read(
            right,
            lambda row: (
                [*row.path[: max(1, len(row.path) - 3)], *row.path[-2:]]
                if len(row.path) > 3
                else row.path
            ),
        ),
    )
    yield "all of them", rows_read(right, lambda row: row.path[-2:])
    yield (
        "all of them but the root",
        rows_read(right, lambda row: row.path if len(row.path) < 4 else (0, *row.path[-2:])),
    )
    yield (
        "the root's child",
        rows_read(right, lambda row: row.path if len(row.path) < 4 else (0, *row.path[2:])),
    )


@hypothesis(
    "diagonal-top-left",
    "row i reads the first i + 1 keys: the causal diagonal starts at the first key, not the last",
    *_GROUPS,
)
def diagonal_top_left(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def first(row: Row) -> list[Key]:
        own = [ground.own(row.b, r) for r in range(row_count(right, row))]
        return [*ground.prefix(row.b), *own][: row.row + 1]

    yield "", reading(right, first)
    yield (
        "of the keys that the tree lets it read",
        reading(right, lambda row: [key for key in ground.reads(row) if key in first(row)]),
    )
    yield "of its own list", reading(right, lambda row: ground.reads(row)[: row.row + 1])
    yield (
        "of the prefix",
        reading(right, lambda row: [*ground.prefix(row.b)[: row.row + 1], *path_keys(ground, row)]),
    )
    window = ground.window
    if window is not None:
        # The window ends at the row's number too, and is cut nowhere else.
        for detail, keys_of in (
            ("the window as well", first),
            (
                "of its own list, the window as well",
                lambda row: [*ground.reads(row)[: row.row + 1]],
            ),
        ):
            low = [max(0, row.row + 1 - window) for row in ground.rows]
            seen = tuple(tuple(keys_of(row)[at:]) for row, at in zip(ground.rows, low, strict=True))
            yield detail, replace(right, seen=seen)


VISIBILITY: tuple[Hypothesis, ...] = (
    causal_mask,
    no_mask,
    sibling_visible,
    root_hidden,
    self_hidden,
    parent_hidden,
    ancestor_hidden,
    diagonal_top_left,
)
