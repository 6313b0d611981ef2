"""Position: which number stands in for P + depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Ground, Row
from treeproof.diagnosis.hypothesis import Hypothesis, cutting, hypothesis
from treeproof.diagnosis.world import World
from treeproof.generate.embedding import pool_dims

_GROUPS: tuple[Group, ...] = ("positions", "tables", "forward")


def _given(right: World, position: Callable[[Row], int]) -> Iterator[tuple[str, World]]:
    """Real rows get this position; the window's start may have been derived from it."""
    positions = list(right.positions)
    for row in right.ground.rows:
        positions[row.flat] = position(row)
    world = replace(right, positions=tuple(positions))
    yield "", world
    window = right.ground.window
    if window is not None:
        cut = cutting(world, lambda row, keys: [k for k in keys if position(row) - window < k.at])
        yield "and the window starts from it", cut


@hypothesis(
    "position-is-row", "a row's position is P + its row number instead of its depth", *_GROUPS
)
def position_is_row(right: World) -> Iterator[tuple[str, World]]:
    yield from _given(right, lambda row: row.prefix + row.row)


@hypothesis("position-off-by-one", "every position is one off", *_GROUPS)
def position_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    for by in (1, -1):
        for detail, world in _given(right, lambda row, by=by: row.position + by):  # type: ignore[misc]
            yield f"{by:+d}{' ' * bool(detail)}{detail}", world
    for by in (1, -1):
        drafts = _given(right, lambda row, by=by: row.position + (by if row.row else 0))  # type: ignore[misc]
        for detail, world in drafts:
            yield f"{by:+d} below the root{' ' * bool(detail)}{detail}", world


@hypothesis(
    "position-without-prefix", "a row's position is its depth alone, without the prefix", *_GROUPS
)
def position_without_prefix(right: World) -> Iterator[tuple[str, World]]:
    yield from _given(right, lambda row: row.depth)


@hypothesis(
    "position-of-neighbour",
    "a row's position counts from another request's prefix length",
    *_GROUPS,
)
def position_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    for name, other in neighbours(right.ground):
        for detail, world in _given(
            right,
            lambda row, other=other: right.lengths[other(row.b)] + row.depth,  # type: ignore[misc]
        ):
            yield f"{name}{' ' * bool(detail)}{detail}", world
    # Requests lie one after another; these look for them at a stride of their own.
    requests, flat = right.ground.requests, right.positions
    widest = max(request.num_nodes for request in requests)
    strides: dict[str, Callable[[Row], int]] = {
        "at the stride of the widest request": lambda row: row.b * widest + row.row,
        "at the stride of drafts without roots": lambda row: row.flat - row.b,
    }
    for name, place in strides.items():
        for detail, world in _given(
            right,
            lambda row, place=place: flat[min(place(row), len(flat) - 1)],  # type: ignore[misc]
        ):
            yield f"{name}{' ' * bool(detail)}{detail}", world


def neighbours(ground: Ground) -> Iterator[tuple[str, Callable[[int], int]]]:
    """Ways of taking another request for one's own; none where there is one request."""
    count = len(ground.requests)
    if count > 1:
        yield "the next request's", lambda b: (b + 1) % count
        yield "the previous request's", lambda b: (b - 1) % count
        yield "the first request's", lambda b: 0
        yield "the last request's", lambda b: count - 1
        yield "the next request's, the last keeps its own", lambda b: min(b + 1, count - 1)
        yield "the previous request's, the first keeps its own", lambda b: max(b - 1, 0)
        yield "requests in reverse order", lambda b: count - 1 - b


@hypothesis(
    "position-of-wrong-parent",
    "a row's position follows the row before it or another row, not its parent",
    *_GROUPS,
)
def position_of_wrong_parent(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def depth_in(row: Row, other: int) -> int:
        return ground.row(row.b, other).depth

    def after(other: Callable[[Row], int]) -> Callable[[Row], int]:
        return lambda row: row.prefix + (depth_in(row, other(row)) + 1 if row.row else 0)

    yield from _given(right, after(lambda row: row.row - 1))
    for detail, world in _given(right, after(lambda row: max(0, row.parent - 1))):
        yield f"the row before its parent{' ' * bool(detail)}{detail}", world
    for detail, world in _given(
        right,
        after(lambda row: min(row.parent + 1, len(ground.by_request[row.b]) - 1)),
    ):
        yield f"the row after its parent{' ' * bool(detail)}{detail}", world
    # Depths in breadth-first order, given to rows in another: a new layer that was not gathered.
    in_order = [sorted(r.depth for r in rows) for rows in ground.by_request]
    for detail, world in _given(right, lambda row: row.prefix + in_order[row.b][row.row]):
        yield f"depths in ascending order{' ' * bool(detail)}{detail}", world
    topk, _ = pool_dims(ground.case)
    branches: dict[str, Callable[[Row], int]] = {
        "the row topk before it": lambda row: (
            1 + depth_in(row, row.row - topk) if row.row > topk else row.depth
        ),
        "in layers of topk rows": lambda row: 1 + (row.row - 1) // topk if row.row else 0,
    }
    for name, depth in branches.items():
        for detail, world in _given(right, lambda row, depth=depth: row.prefix + depth(row)):  # type: ignore[misc]
            yield f"{name}{' ' * bool(detail)}{detail}", world


@hypothesis(
    "position-not-expanded",
    "all rows of a request share the position of its root",
    *_GROUPS,
    "contract",
)
def position_not_expanded(right: World) -> Iterator[tuple[str, World]]:
    yield from _given(right, lambda row: row.prefix)
    # One position a request in a buffer of one a row: what follows is padding.
    per_request = [request.prefix_len for request in right.ground.requests]
    flat = [*per_request, *[0] * len(right.positions)]
    if len(per_request) > 1:
        for detail, world in _given(right, lambda row: flat[row.flat]):
            yield f"one a request, then zeros{' ' * bool(detail)}{detail}", world
    if right.ground.case.num_rows > len(per_request):
        lone = frozenset({("wrong-shape", "build", "positions: one a request")})
        yield "one a request, and no more", replace(right, contract=lone)


class _Other(int):
    """A position that a padded row holds in place of the right one, which this int is."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) != int(other)

    __hash__ = int.__hash__


@hypothesis("padding-position", "padded rows are given a position of their own", "positions")
def padding_position(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    values: dict[str, Callable[[int, int], int]] = {
        "P": lambda b, row: ground.requests[b].prefix_len,
        "P + row": lambda b, row: ground.requests[b].prefix_len + row,
        "P + number of nodes": lambda b, row: sum(
            (ground.requests[b].prefix_len, ground.requests[b].num_nodes)
        ),
        "the last row's": lambda b, row: ground.by_request[b][-1].position,
        "P + 1": lambda b, row: ground.requests[b].prefix_len + 1,
        "-1": lambda b, row: -1,
        "1": lambda b, row: 1,
        "P - 1": lambda b, row: ground.requests[b].prefix_len - 1,
        "row": lambda b, row: row,
        "the deepest row's": lambda b, row: max(r.position for r in ground.by_request[b]),
    }
    for name, value in values.items():
        positions = list(right.positions)
        for flat, (b, row) in enumerate(ground.scene.rows):
            if row >= ground.requests[b].num_nodes:
                positions[flat] = value(b, row)
        yield name, replace(right, positions=tuple(positions))
    # What an older batch left there is any number: all that can be said is that it is not theirs.
    positions = list(right.positions)
    for flat, (b, row) in enumerate(ground.scene.rows):
        if row >= ground.requests[b].num_nodes:
            positions[flat] = _Other(positions[flat])
    yield "left from something else", replace(right, positions=tuple(positions))


POSITION: tuple[Hypothesis, ...] = (
    position_is_row,
    position_off_by_one,
    position_without_prefix,
    position_of_neighbour,
    position_not_expanded,
    position_of_wrong_parent,
    padding_position,
)
