"""KV, committed: what stays, moves or counts wrongly when a path has been accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.evidence import Commit
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.moving import Moves, committed, own, right_moves
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World
from treeproof.generate.embedding import pool_dims
from treeproof.properties.traversal import Prediction


def _with(right: World, commits: tuple[Commit, ...]) -> World:
    return replace(right, commits=commits)


@hypothesis("not-compacted", "accepted rows are left where they were verified", "commit")
def not_compacted(right: World) -> Iterator[tuple[str, World]]:
    yield "", _with(right, committed(right.ground, lambda prediction, b: []))


@hypothesis(
    "moved-in-place",
    "rows are moved one after another, over rows that have yet to be moved",
    "commit",
)
def moved_in_place(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def forward(prediction: Prediction, b: int) -> Moves:
        return right_moves(ground, prediction.rows[b], b)

    def backward(prediction: Prediction, b: int) -> Moves:
        return reversed(right_moves(ground, prediction.rows[b], b))

    def by_row(prediction: Prediction, b: int) -> Moves:
        return sorted(
            right_moves(ground, prediction.rows[b], b),
            key=lambda move: ground.scene.ledger.row_slots(b).index(move[0]),
        )

    def by_slot(prediction: Prediction, b: int) -> Moves:
        return sorted(right_moves(ground, prediction.rows[b], b))

    def by_slot_down(prediction: Prediction, b: int) -> Moves:
        return sorted(right_moves(ground, prediction.rows[b], b), reverse=True)

    for detail, order in (
        ("from the root down", forward), ("from the last row up", backward), ("by row", by_row),
        ("by slot", by_slot), ("by slot, from the last", by_slot_down),
    ):  # fmt: skip
        yield detail, _with(right, committed(ground, order, one_by_one=True))


@hypothesis("page-moved-for-token", "whole pages are moved where one key should be", "commit")
def page_moved_for_token(right: World) -> Iterator[tuple[str, World]]:
    ground, page = right.ground, right.ground.page
    if page == 1:
        return

    def pages(prediction: Prediction, b: int) -> Moves:
        found = []
        for source, target in right_moves(ground, prediction.rows[b], b):
            a, z = source // page * page, target // page * page
            found += [(a + i, z + i) for i in range(page)]
        return found

    yield "all loads first", _with(right, committed(ground, pages))
    yield "one after another", _with(right, committed(ground, pages, one_by_one=True))

    def other_pages(prediction: Prediction, b: int) -> Moves:
        """Where source and target lie in one page nothing has to move."""
        found = []
        for source, target in right_moves(ground, prediction.rows[b], b):
            a, z = source // page * page, target // page * page
            found += [(a + i, z + i) for i in range(page)] if a != z else []
        return found

    yield "between different pages", _with(right, committed(ground, other_pages))
    yield (
        "between different pages, one after another",
        _with(right, committed(ground, other_pages, one_by_one=True)),
    )

    def by_number(prediction: Prediction, b: int) -> Moves:
        """Page numbers moved as if they were slots."""
        return [
            (source // page, target // page)
            for source, target in right_moves(ground, prediction.rows[b], b)
        ]

    yield "page numbers taken for slots", _with(right, committed(ground, by_number))

    def whole_list(prediction: Prediction, b: int) -> Moves:
        """The j-th page of the accepted rows' over the j-th page of the request's rows."""
        sources = dict.fromkeys(s // page for s, _ in right_moves(ground, prediction.rows[b], b))
        targets = dict.fromkeys(t // page for _, t in right_moves(ground, prediction.rows[b], b))
        return [
            (a * page + i, z * page + i)
            for a, z in zip(sources, targets, strict=False)
            for i in range(page)
        ]

    yield "page by page", _with(right, committed(ground, whole_list))


@hypothesis("half-moved", "a part of the accepted rows is not moved", "commit")
def half_moved(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    parts: dict[str, Callable[[int], slice]] = {
        "the first half moves": lambda n: slice(0, n // 2),
        "the first half moves, rounded up": lambda n: slice(0, (n + 1) // 2),
        "the second half moves": lambda n: slice(n // 2, n),
        "the last row stays": lambda n: slice(0, n - 1),
        "the first draft stays": lambda n: slice(2, n),
        "the first draft moves": lambda n: slice(0, 2),
        "the last row moves": lambda n: slice(n - 1, n),
        "the first two drafts move": lambda n: slice(0, 3),
        "every other one moves": lambda n: slice(0, n, 2),
        "every other one stays": lambda n: slice(1, n, 2),
    }
    for detail, part in parts.items():

        def moves(prediction: Prediction, b: int, part: Callable[[int], slice] = part) -> Moves:
            every = right_moves(ground, prediction.rows[b], b)
            return every[part(len(every))]

        yield detail, _with(right, committed(ground, moves))
    count = len(ground.requests)
    if count > 1:
        requests: dict[str, Callable[[int], bool]] = {
            "the first request's move": lambda b: b == 0,
            "all requests' but the last's move": lambda b: b < count - 1,
            "all requests' but the first's move": lambda b: b > 0,
        }
        for detail, chosen in requests.items():
            yield (
                detail,
                _with(
                    right,
                    committed(
                        ground,
                        lambda prediction, b, chosen=chosen: (  # type: ignore[misc]
                            right_moves(ground, prediction.rows[b], b) if chosen(b) else []
                        ),
                    ),
                ),
            )


def _boundary(right: World, boundary: Callable[[Prediction, int], int]) -> World:
    ground = right.ground
    return _with(
        right,
        committed(
            ground,
            lambda prediction, b: right_moves(ground, prediction.rows[b], b),
            seq_lens=boundary,
        ),
    )


@hypothesis(
    "boundary-off-by-one", "the new boundary is one off from P + the rows accepted", "commit"
)
def boundary_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    for by in (-1, 1):
        yield (
            f"{by:+d}",
            _boundary(
                right,
                lambda prediction, b, by=by: (  # type: ignore[misc]
                    right.lengths[b] + len(prediction.rows[b]) + by
                ),
            ),
        )


@hypothesis(
    "boundary-optimistic",
    "the boundary is counted as if all rows, or all levels, had been accepted",
    *("commit", "positions", "slots"),
    narrow="requests",
)
def boundary_optimistic(right: World) -> Iterator[tuple[str, World]]:
    requests, ledger = right.ground.requests, right.ground.scene.ledger
    # A build of the next round that starts from where a whole path would have ended.
    levels = {
        "levels": pool_dims(right.ground.case)[1],
        "levels and the root": 1 + pool_dims(right.ground.case)[1],
    }
    for detail, ahead in levels.items():
        positions, slots = list(right.positions), list(right.slots)
        for row in right.ground.rows:
            table = ledger.req_to_token[ledger.request_slots[row.b]]
            positions[row.flat] = row.position + ahead
            slots[row.flat] = table[min(row.prefix + ahead + row.row, len(table) - 1)]
        yield f"positions, by all {detail}", replace(right, positions=tuple(positions))
        yield f"slots, by all {detail}", replace(right, slots=tuple(slots))
        both = replace(right, positions=tuple(positions), slots=tuple(slots))
        yield f"positions and slots, by all {detail}", both
    yield (
        "the longest path accepted in the batch",
        _boundary(right, lambda prediction, b: right.lengths[b] + max(map(len, prediction.rows))),
    )
    deepest = 1 + max(1, *(max(request.tree.depth) for request in requests))
    ways: dict[str, Callable[[int], int]] = {
        "": lambda b: requests[b].num_nodes,
        "padded rows included": lambda b: requests[b].num_rows,
        "the longest path": lambda b: deepest,
        "the request's longest path": lambda b: 1 + max(requests[b].tree.depth),
        "the widest request's rows": lambda b: max(request.num_rows for request in requests),
    }
    for detail, rows in ways.items():
        yield (
            detail,
            _boundary(
                right,
                lambda prediction, b, rows=rows: right.lengths[b] + rows(b),  # type: ignore[misc]
            ),
        )


@hypothesis(
    "over-read",
    "accepted rows are read at the stride of verify rows, not of the longest path",
    "commit",
)
def over_read(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    width = 1 + max(1, *(max(request.tree.depth) for request in ground.requests))
    strides = {
        "the widest request's rows": max(request.num_rows for request in ground.requests),
        "one less": width - 1,
        "one more": width + 1,
    }
    for detail, stride in strides.items():
        for way in ("cells past the end are left", "cells past the end name the last row",
                    "the last row goes where -1 says"):  # fmt: skip

            def moves(
                prediction: Prediction, b: int, stride: int = stride, way: str = way
            ) -> Moves:
                flat: list[int] = []
                for c, rows in enumerate(prediction.rows):
                    first = ground.case.qo_indptr[c]
                    flat += [*(first + r for r in rows), *[-1] * (width - len(rows))]
                found = []
                for j in range(len(prediction.rows[b])):
                    at = b * stride + j
                    row = flat[at] if at < len(flat) else -1
                    if row < 0 and way == "cells past the end are left":
                        continue
                    if row < 0:
                        row = ground.case.num_rows - 1
                    source = right.slots[row]
                    found.append((source, own(ground, b, j)))
                return found

            yield f"{detail}, {way}", _with(right, committed(ground, moves))

    def every_row(prediction: Prediction, b: int) -> Moves:
        """As many entries as there are verify rows: those behind the path are padding, -1."""
        rows = [
            *prediction.rows[b],
            *[-1] * (ground.requests[b].num_nodes - len(prediction.rows[b])),
        ]
        first = ground.case.qo_indptr[b]
        return [
            (right.slots[first + row if row >= 0 else -1], own(ground, b, j))
            for j, row in enumerate(rows)
        ]

    yield "every row of the request moves", _with(right, committed(ground, every_row))


@hypothesis("next-root-not-bonus", "the next root is not the bonus token just emitted", "commit")
def next_root_not_bonus(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def moves(prediction: Prediction, b: int) -> Moves:
        return right_moves(ground, prediction.rows[b], b)

    roots: dict[str, Callable[[Prediction, int], int]] = {
        "the last accepted draft": lambda prediction, b: (
            prediction.emitted[b][-2] if len(prediction.emitted[b]) > 1 else -1
        ),
        "the token before it, or itself": lambda prediction, b: prediction.emitted[b][
            max(0, len(prediction.emitted[b]) - 2)
        ],
        "the first token emitted": lambda prediction, b: prediction.emitted[b][0],
        "the token behind it": lambda prediction, b: -1,
        "the same root again": lambda prediction, b: ground.requests[b].tree.tokens[0],
        "0": lambda prediction, b: 0,
    }
    for name, other in neighbours(ground):
        roots[f"{name} bonus"] = lambda prediction, b, other=other: (  # type: ignore[misc]
            prediction.emitted[other(b)][-1]
        )
    for detail, root in roots.items():
        yield detail, _with(right, committed(ground, moves, next_root=root))


COMMITTING: tuple[Hypothesis, ...] = (
    not_compacted,
    moved_in_place,
    boundary_optimistic,
    boundary_off_by_one,
    half_moved,
    page_moved_for_token,
    over_read,
    next_root_not_bonus,
)
