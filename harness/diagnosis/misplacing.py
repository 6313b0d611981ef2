"""Commits whose accepted rows come from where they should and go to another row's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treeproof.diagnosis.evidence import Commit
from treeproof.diagnosis.moving import Moves, committed, own
from treeproof.diagnosis.walking import most_rows
from treeproof.diagnosis.world import World
from treeproof.properties.traversal import Prediction


def launch_slot(right: World, flat: int) -> int:
    """Slot of a row of the launch; the pad slot for padded ones."""
    slot = right.slots[flat]
    return slot if slot >= 0 else right.ground.case.layout.pad_slot


def to_neighbour(right: World, other: Callable[[int], int]) -> tuple[Commit, ...]:
    """Accepted row j goes to the slot of another request's row j, as far as the launch has rows."""
    ground = right.ground

    def moves(prediction: Prediction, b: int) -> Moves:
        front = ground.case.qo_indptr[other(b)]
        return [
            (own(ground, b, row), launch_slot(right, front + j))
            for j, row in enumerate(prediction.rows[b])
            if front + j < len(right.slots)
        ]

    return committed(ground, moves)


def beside_their_columns(right: World) -> Iterator[tuple[str, tuple[Commit, ...]]]:
    """Accepted rows one column late or early."""
    ground = right.ground

    def late(prediction: Prediction, b: int) -> Moves:
        first, end = ground.case.qo_indptr[b : b + 2]
        return [
            (own(ground, b, row), launch_slot(right, first + j + 1))
            for j, row in enumerate(prediction.rows[b])
            if first + j + 1 < end
        ]

    def over_root(prediction: Prediction, b: int) -> Moves:
        return [
            (own(ground, b, row), own(ground, b, j)) for j, row in enumerate(prediction.rows[b][1:])
        ]

    def over_prefix(prediction: Prediction, b: int) -> Moves:
        before = ground.requests[b].prefix_len - 1
        return [
            (own(ground, b, row), ground.slot(b, before + j))
            for j, row in enumerate(prediction.rows[b])
            if before + j >= 0
        ]

    yield "+1, for accepted rows", committed(ground, late)
    yield "-1, for accepted drafts, over the root", committed(ground, over_root)
    yield "-1, for accepted rows, over the last prefix key", committed(ground, over_prefix)


def out_of_step(right: World, *, sources_padded: bool) -> tuple[Commit, ...]:
    """The j-th source goes to the j-th target, and only one of the two lists has padding."""
    ground, width = right.ground, most_rows(right.ground)
    found = []
    for turn, prediction in enumerate(ground.rounds):
        sources: list[int] = []
        targets: list[int] = []
        for b, rows in enumerate(prediction.rows):
            padding = [ground.case.layout.pad_slot] * (width - len(rows))
            sources += [own(ground, b, row) for row in rows]
            targets += [own(ground, b, j) for j in range(len(rows))]
            if sources_padded:
                sources += padding
            else:
                targets += padding
        pairs = [
            (source, target)
            for source, target in zip(sources, targets, strict=False)
            if source >= 0 and target >= 0
        ]
        every = committed(ground, lambda _, b, pairs=pairs: [] if b else pairs)  # type: ignore[misc]
        found.append(every[turn])
    return tuple(found)
