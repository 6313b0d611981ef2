"""Traversal, declared: which link stands in for the first child or the next sibling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.walking import along
from treeproof.diagnosis.world import Table, World

_GROUPS: tuple[Group, ...] = ("links", "accept")
DOWN, RIGHT, UP, INDEX = (
    "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token", "retrieve_index",
)  # fmt: skip
Cell = Callable[[int, int, int], int]
"""(request, row, right cell) to the cell that stands there; rows of padding are left out."""


def _linked(right: World, changes: Mapping[str, Cell], *, walks: bool = True) -> World:
    """Tables with other cells on real rows, and the walks that they lead to.

    Not `walks`: acceptance that goes so on right links has a name of its own.
    """
    links = dict(right.links)
    for name, cell in changes.items():
        links[name] = tuple(
            tuple(
                cell(b, row, true) if row < request.num_nodes else true
                for row, true in enumerate(line)
            )
            for b, (request, line) in enumerate(
                zip(right.ground.requests, right.links[name], strict=True)
            )
        )
    if not walks:
        return replace(right, links=links)
    return replace(right, links=links, walks=along(right.ground, links))


@hypothesis("links-off-by-one", "links point one row beside the row that they mean", *_GROUPS)
def links_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    for by in (1, -1):

        def moved(b: int, row: int, true: int, by: int = by) -> int:
            return true + by if true >= 0 else true

        def kept_inside(b: int, row: int, true: int, by: int = by) -> int:
            last = right.ground.requests[b].num_nodes - 1
            return min(max(0, true + by), last) if true >= 0 else true

        def all_cells(b: int, row: int, true: int, by: int = by) -> int:
            return true + by

        for way, cell in (("", moved), (", kept inside", kept_inside), (", none too", all_cells)):
            for name, tables in (
                ("first children", (DOWN,)), ("next siblings", (RIGHT,)),
                ("children and siblings", (DOWN, RIGHT)), ("parents", (UP,)), ("rows", (INDEX,)),
                ("children, siblings and parents", (DOWN, RIGHT, UP)),
            ):  # fmt: skip
                # The sibling before is mostly the child itself: then no sibling is looked at.
                alike = tables == (RIGHT,) and by < 0
                yield (
                    f"{name} {by:+d}{way}",
                    _linked(right, dict.fromkeys(tables, cell), walks=not alike),
                )


def _everywhere(right: World, **tables: Callable[[int, int, int], int]) -> World:
    """Tables with other cells, those of padded rows among them, and the walks they lead to."""
    links = dict(right.links)
    for name, cell in tables.items():
        links[name] = tuple(
            tuple(cell(b, row, true) for row, true in enumerate(line))
            for b, line in enumerate(right.links[name])
        )
    return replace(right, links=links, walks=along(right.ground, links))


def padding_linked(right: World) -> Iterator[tuple[str, World]]:
    """Links that lead to padded rows, or from them into the tree."""
    requests = right.ground.requests

    def padded(b: int, row: int) -> bool:
        return requests[b].num_nodes <= row < requests[b].num_rows

    def first_padded(b: int, true: int) -> int:
        return requests[b].num_nodes if requests[b].pad_rows else true

    def child(b: int, row: int, true: int) -> int:
        return first_padded(b, true) if row == 0 and true < 0 else true

    def youngest(b: int, row: int, true: int) -> int:
        of_root = _is_last(right.ground, b, row) and requests[b].parent_rows[row] == 0
        return first_padded(b, true) if row < requests[b].num_nodes and of_root else true

    def zero(b: int, row: int, true: int) -> int:
        return 0 if padded(b, row) else true

    yield "below the root", _everywhere(right, **{DOWN: child, RIGHT: youngest})
    for of, tables in (
        ("children", (DOWN,)), ("siblings", (RIGHT,)), ("parents", (UP,)),
        ("children and siblings", (DOWN, RIGHT)), ("links", (DOWN, RIGHT, UP)),
    ):  # fmt: skip
        yield (
            f"{of} of padded rows name the root",
            _everywhere(right, **dict.fromkeys(tables, zero)),
        )


def _is_last(ground: Ground, b: int, row: int) -> bool:
    """Whether the row is its parent's last child."""
    up = ground.requests[b].parent_rows
    return 0 < row < len(up) and row == max(r for r, parent in enumerate(up) if parent == up[row])


@hypothesis("last-sibling-linked", "the last child of a row has a next sibling", *_GROUPS)
def last_sibling_linked(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    targets: dict[str, Callable[[int, int], int]] = {
        "itself": lambda b, row: row,
        "the root": lambda b, row: 0,
        "the next row": lambda b, row: row + 1,
        "the next row, where there is one": lambda b, row: (
            row + 1 if row + 1 < ground.requests[b].num_nodes else -1
        ),
        "the first child": lambda b, row: right.links[DOWN][b][ground.requests[b].parent_rows[row]],
        "its parent": lambda b, row: ground.requests[b].parent_rows[row],
        "its parent's next sibling": lambda b, row: right.links[RIGHT][b][
            ground.requests[b].parent_rows[row]
        ],
        "its own first child": lambda b, row: right.links[DOWN][b][row],
        "the next row of its depth": lambda b, row: next(
            (
                r.row
                for r in ground.by_request[b]
                if r.row > row and r.depth == ground.row(b, row).depth
            ),
            -1,
        ),
        "the last row": lambda b, row: ground.requests[b].num_nodes - 1,
    }
    yield (
        "the root, wherever there is none",
        _everywhere(right, **{RIGHT: lambda b, row, true: max(0, true)}),
    )
    for detail, target in targets.items():

        def cell(b: int, row: int, true: int, target: Callable[[int, int], int] = target) -> int:
            return target(b, row) if _is_last(ground, b, row) else true

        yield detail, _linked(right, {RIGHT: cell})

        def among_several(
            b: int, row: int, true: int, target: Callable[[int, int], int] = target
        ) -> int:
            up = ground.requests[b].parent_rows
            several = row > 0 and sum(parent == up[row] for parent in up) > 1
            return target(b, row) if several and _is_last(ground, b, row) else true

        yield f"{detail}, among several", _linked(right, {RIGHT: among_several})


@hypothesis("sibling-lost", "a child is reached by no link", *_GROUPS)
def sibling_lost(right: World) -> Iterator[tuple[str, World]]:
    ground, sibling = right.ground, right.links[RIGHT]

    def rank(b: int, row: int) -> int:
        up = ground.requests[b].parent_rows
        return sum(parent == up[row] for parent in up[:row])

    yield "all but the first", _linked(right, {RIGHT: lambda b, row, true: -1}, walks=False)
    yield (
        "the last",
        _linked(
            right,
            {RIGHT: lambda b, row, true: -1 if true >= 0 and sibling[b][true] < 0 else true},
        ),
    )
    yield (
        "the second",
        _linked(
            right,
            {
                RIGHT: lambda b, row, true: (
                    sibling[b][true] if true >= 0 and rank(b, row) == 0 else true
                )
            },
        ),
    )
    yield (
        "all past the second",
        _linked(right, {RIGHT: lambda b, row, true: -1 if rank(b, row) > 0 else true}, walks=False),
    )
    yield (
        "every other one",
        _linked(right, {RIGHT: lambda b, row, true: sibling[b][true] if true >= 0 else true}),
    )
    yield (
        "the one after each child, unless it is the last",
        _linked(
            right,
            {
                RIGHT: lambda b, row, true: (
                    sibling[b][true] if true >= 0 and sibling[b][true] >= 0 else true
                )
            },
        ),
    )
    for most in (16, 32, 64):

        def inside(b: int, row: int, true: int, most: int = most) -> int:
            return true if true < most else -1

        yield (
            f"rows from {most} on",
            _linked(right, {DOWN: inside, RIGHT: inside}, walks=False),
        )
    # The list is entered at another child: those before it are lost.
    yield (
        "the first",
        _linked(
            right,
            {DOWN: lambda b, row, true: sibling[b][true] if true >= 0 else true},
        ),
    )
    yield (
        "the first of several",
        _linked(
            right,
            {
                DOWN: lambda b, row, true: (
                    sibling[b][true] if true >= 0 and sibling[b][true] >= 0 else true
                )
            },
        ),
    )

    def last_child(b: int, row: int, true: int) -> int:
        while true >= 0 and sibling[b][true] >= 0:
            true = sibling[b][true]
        return true

    yield "all but the last", _linked(right, {DOWN: last_child})
    below = {DOWN: lambda b, row, true: -1 if row == 0 else true}
    yield "all of the root", _linked(right, below, walks=False)
    yield (
        "all below the root",
        _linked(right, {DOWN: lambda b, row, true: true if row == 0 else -1}, walks=False),
    )


@hypothesis("links-of-neighbour", "a request's links are another request's", *_GROUPS)
def links_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    for name, other in neighbours(right.ground):

        def whole(table: Table, other: Callable[[int], int] = other) -> Table:
            return tuple(table[other(b)] for b in range(len(table)))

        def real(table: Table, other: Callable[[int], int] = other) -> Table:
            return tuple(
                (*table[other(b)][: request.num_nodes], *table[b][request.num_nodes :])
                for b, request in enumerate(right.ground.requests)
            )

        for way, taken in (("", whole), (", for real rows", real)):
            for of, tables in (
                ("", (DOWN, RIGHT)), (" children", (DOWN,)), (" siblings", (RIGHT,)),
                (" parents", (UP,)), (" rows", (INDEX,)), (" whole tree", (DOWN, RIGHT, UP)),
            ):  # fmt: skip
                links = {**right.links, **{t: taken(right.links[t]) for t in tables}}
                # One table alone leads nowhere that acceptance does not go by itself.
                walks = along(right.ground, links) if len(tables) > 1 else right.walks
                yield f"{name}{of}{way}", replace(right, links=links, walks=walks)
    first = right.ground.case.qo_indptr
    # Siblings or children that were counted in the launch and not in the request.
    for of, tables in (
        ("children", (DOWN,)), ("siblings", (RIGHT,)), ("children and siblings", (DOWN, RIGHT)),
        ("children, siblings and parents", (DOWN, RIGHT, UP)), ("parents", (UP,)),
    ):  # fmt: skip
        yield (
            f"{of} counted in the launch",
            _linked(
                right,
                dict.fromkeys(tables, lambda b, row, true: true + first[b] if true >= 0 else true),
            ),
        )
    yield (
        "rows counted in the request",
        _linked(right, {INDEX: lambda b, row, true: row}),
    )
    widest = max(request.num_rows for request in right.ground.requests)
    yield (
        "rows counted as if all requests were as long as the longest",
        _linked(right, {INDEX: lambda b, row, true: b * widest + row}),
    )


@hypothesis("link-to-unselected", "a row links to a node that was not selected", *_GROUPS)
def link_to_unselected(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    beyond = [request.num_nodes for request in ground.requests]
    choices: dict[str, Mapping[str, Cell]] = {
        "leaves, to the row past the last": {DOWN: lambda b, row, true: beyond[b] if true < 0 else true},
        "last siblings, to the row past the last": {
            RIGHT: lambda b, row, true: beyond[b] if _is_last(ground, b, row) else true
        },
        "the last row's child, to the row past the last": {
            DOWN: lambda b, row, true: beyond[b] if row == beyond[b] - 1 else true
        },
        "the last row's sibling, to the row past the last": {
            RIGHT: lambda b, row, true: beyond[b] if row == beyond[b] - 1 else true
        },
        "the root's last child, to the row past the last": {
            RIGHT: lambda b, row, true: beyond[b]
            if _is_last(ground, b, row) and ground.requests[b].parent_rows[row] == 0
            else true
        },
        "leaves, to the widest request's end": {
            DOWN: lambda b, row, true: max(beyond) if true < 0 else true
        },
    }  # fmt: skip
    for detail, changes in choices.items():
        yield detail, _linked(right, changes)


LINKS: tuple[Hypothesis, ...] = (
    links_off_by_one,
    last_sibling_linked,
    sibling_lost,
    links_of_neighbour,
    link_to_unselected,
)
