"""KV, committed: what lies beside keys and values, moved otherwise than these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.evidence import Commit
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.moving import Moves, committed, own, right_moves
from treeproof.diagnosis.world import World
from treeproof.properties.traversal import Prediction


def _beside(right: World, otherwise: Sequence[Commit]) -> World:
    """Keys and values are moved rightly, and all else as in `otherwise`."""
    return replace(
        right,
        commits=tuple(
            replace(commit, beside=other.companions)
            for commit, other in zip(right.commits, otherwise, strict=True)
        ),
    )


@hypothesis(
    "companion-left-behind",
    "what lies beside keys and values stays where it was, and does not move with them",
    "commit",
)
def companion_left_behind(right: World) -> Iterator[tuple[str, World]]:
    yield "", _beside(right, committed(right.ground, lambda prediction, b: []))


@hypothesis(
    "companion-by-page",
    "what lies beside keys and values is moved by whole pages, or by their numbers",
    "commit",
)
def companion_by_page(right: World) -> Iterator[tuple[str, World]]:
    ground, page = right.ground, right.ground.page
    if page == 1:
        return
    pages = ground.case.layout.num_slots // page

    def whole(prediction: Prediction, b: int) -> Moves:
        return [
            (source // page * page + i, target // page * page + i)
            for source, target in right_moves(ground, prediction.rows[b], b)
            for i in range(page)
        ]

    def slots_for_pages(prediction: Prediction, b: int) -> Moves:
        """There is no page of that number for most slots."""
        return [
            (source * page + i, target * page + i)
            for source, target in right_moves(ground, prediction.rows[b], b)
            if max(source, target) < pages
            for i in range(page)
        ]

    yield "whole pages", _beside(right, committed(ground, whole))
    yield "slots taken for page numbers", _beside(right, committed(ground, slots_for_pages))


@hypothesis(
    "companion-by-old-lengths",
    "what lies beside keys and values is moved by the lengths of an earlier commit",
    *("commit", "again"),
    narrow="no",
)
def companion_by_old_lengths(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    before = {
        id(prediction): earlier
        for prediction, earlier in zip(ground.rounds, (None, *ground.rounds), strict=False)
    }

    def as_long_as_before(prediction: Prediction, b: int) -> Moves:
        earlier, rows = before[id(prediction)], prediction.rows[b]
        return right_moves(ground, rows if earlier is None else rows[: len(earlier.rows[b])], b)

    yield "as many rows", _beside(right, committed(ground, as_long_as_before))
    yield "columns counted from an earlier boundary", replace(right, again=_from_earlier)


def _from_earlier(world: World, earlier: VerifyCase) -> World:
    """The first commit after another batch, of as many requests, counts from where those stood."""
    ground, then = world.ground, earlier.requests
    if len(then) != len(ground.requests):
        return world
    first = ground.rounds[0]

    def moves(prediction: Prediction, b: int) -> Moves:
        if prediction is not first:
            return right_moves(ground, prediction.rows[b], b)
        start = then[b].prefix_len
        return [
            (own(ground, b, row), ground.slot(b, start + j))
            for j, row in enumerate(prediction.rows[b])
        ]

    return _beside(world, committed(ground, moves))


COMPANIONS: tuple[Hypothesis, ...] = (
    companion_left_behind,
    companion_by_page,
    companion_by_old_lengths,
)
