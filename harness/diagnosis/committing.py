"""KV, committed: what stays, moves or counts wrongly when a path has been accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from treeproof.diagnosis.accepted_lists import ACCEPTED_LISTS
from treeproof.diagnosis.boundary import BOUNDARY
from treeproof.diagnosis.companions import COMPANIONS
from treeproof.diagnosis.evidence import Commit, partly
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.moving import Moves, committed, right_moves
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.walking import most_rows
from treeproof.diagnosis.world import World
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

    def slots_for_pages(prediction: Prediction, b: int) -> Moves:
        """Slots given to a pool that takes pages; there is none of that number for most."""
        pages = ground.case.layout.num_slots // page
        return [
            (source * page + i, target * page + i)
            for source, target in right_moves(ground, prediction.rows[b], b)
            if max(source, target) < pages
            for i in range(page)
        ]

    wrong = committed(ground, slots_for_pages)
    yield "slots taken for page numbers", _with(right, wrong)
    for side in ("k", "v"):
        mixed = zip(right.commits, wrong, strict=True)
        yield (
            f"slots taken for page numbers, in {side.upper()} alone",
            _with(right, tuple(replace(a, **{side: getattr(z, side)}) for a, z in mixed)),
        )

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


def _partly_moved(commit: Commit) -> Commit:
    """Slots that take over another one's contents take a part of them."""
    k, v = (
        np.array([s if s == slot else partly(int(s)) for slot, s in enumerate(held)])
        for held in (commit.k, commit.v)
    )
    return replace(commit, k=k, v=v)


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
    partly_moved = tuple(map(_partly_moved, right.commits))
    yield "some lanes of each row move", _with(right, partly_moved)
    of_heads = (
        replace(a, beside=z.companions) for a, z in zip(partly_moved, right.commits, strict=True)
    )  # what lies beside keys and values has one head
    yield "some heads of each row move", _with(right, tuple(of_heads))
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


@hypothesis("next-root-not-bonus", "the next root is not the bonus token just emitted", "commit")
def next_root_not_bonus(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def moves(prediction: Prediction, b: int) -> Moves:
        return right_moves(ground, prediction.rows[b], b)

    width = most_rows(ground)

    def at_row_stride(prediction: Prediction, b: int) -> int:
        cells: list[int] = []
        for emitted in prediction.emitted:
            cells += [*emitted, *[-1] * (width - len(emitted))]
        at = ground.case.qo_indptr[b] + len(prediction.rows[b]) - 1
        return cells[min(at, len(cells) - 1)]

    roots: dict[str, Callable[[Prediction, int], int]] = {
        "the last accepted draft": lambda prediction, b: (
            prediction.emitted[b][-2] if len(prediction.emitted[b]) > 1 else -1
        ),
        "the token before it, or itself": lambda prediction, b: prediction.emitted[b][
            max(0, len(prediction.emitted[b]) - 2)
        ],
        "the first token emitted": lambda prediction, b: prediction.emitted[b][0],
        "the token behind it": lambda prediction, b: -1,
        "the last column of a padded line": lambda prediction, b: (
            prediction.emitted[b][-1] if len(prediction.emitted[b]) == width else -1
        ),
        "the cell at the stride of verify rows": at_row_stride,
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
    *COMPANIONS,
    moved_in_place,
    *BOUNDARY,
    half_moved,
    page_moved_for_token,
    *ACCEPTED_LISTS,
    next_root_not_bonus,
)
