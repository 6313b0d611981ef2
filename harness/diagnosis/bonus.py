"""Traversal, measured: which row's prediction stands in for the bonus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treeproof.diagnosis.accepting import right_path, walks_of
from treeproof.diagnosis.evidence import Walk
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.walking import Step, as_walk, most_rows
from treeproof.diagnosis.world import World


def _bonus(right: World, bonus: Callable[[Step, list[int]], int]) -> World:
    """Right walks, with this as the last token emitted."""

    def walk(step: Step) -> Walk:
        rows = right_path(right, step)
        return Walk(tuple(rows), len(rows), (*step.emitted(rows)[:-1], bonus(step, rows)))

    return walks_of(right, walk)


@hypothesis(
    "bonus-from-parent", "the bonus is what the row before the last accepted one predicts", "accept"
)
def bonus_from_parent(right: World) -> Iterator[tuple[str, World]]:
    yield "", _bonus(right, lambda step, rows: step.want(rows[max(0, len(rows) - 2)]))
    most = most_rows(right.ground)
    yield (
        "at full depth",
        _bonus(right, lambda step, rows: step.want(rows[-2 if len(rows) == most else -1])),
    )
    yield (
        "at a leaf",
        _bonus(
            right,
            lambda step, rows: step.want(
                rows[-1] if step.children(rows[-1]) else rows[max(0, len(rows) - 2)]
            ),
        ),
    )


@hypothesis(
    "bonus-from-row",
    "the bonus is what a fixed row predicts, or one counted along the path",
    "accept",
)
def bonus_from_row(right: World) -> Iterator[tuple[str, World]]:
    def nodes(step: Step) -> int:
        return step.ground.requests[step.b].num_nodes

    rows_of: dict[str, Callable[[Step, list[int]], int]] = {
        "the root": lambda step, rows: 0,
        "the row of the number accepted": lambda step, rows: len(rows) - 1,
        "the row after that of the number accepted": lambda step, rows: min(
            len(rows), nodes(step) - 1
        ),
        "the last row": lambda step, rows: nodes(step) - 1,
        "the last row, padding included": lambda step, rows: (
            step.ground.requests[step.b].num_rows - 1
        ),
        "the row after the last accepted one": lambda step, rows: rows[-1] + 1,
        "the row after the last accepted one, where there is one": lambda step, rows: min(
            rows[-1] + 1, nodes(step) - 1
        ),
        "the row before the last accepted one": lambda step, rows: max(0, rows[-1] - 1),
        "the second row": lambda step, rows: min(1, nodes(step) - 1),
        "the first row of the launch": lambda step, rows: -step.first,
        "the last accepted row, without its request's first": lambda step, rows: (
            rows[-1] - step.first
        ),
    }
    for detail, row in rows_of.items():
        yield detail, _bonus(right, lambda step, rows, row=row: step.want(row(step, rows)))  # type: ignore[misc]

    def of_first(step: Step) -> Walk:
        """All predictions are looked up by row of the request: it shows in the whole walk."""
        rows = range(step.ground.requests[step.b].num_rows)
        step = step.believing({row: step.predicted[row] for row in rows})
        return as_walk(step, right_path(right, step))

    yield (
        "that of the same row of the first request, as all along the path",
        walks_of(right, of_first),
    )
    drafts: dict[str, Callable[[Step, list[int]], int]] = {
        "the draft of the last accepted row": lambda step, rows: step.draft(rows[-1]),
        "no token": lambda step, rows: -1,
    }
    for detail, token in drafts.items():

        def walk(step: Step, token: Callable[[Step, list[int]], int] = token) -> Walk:
            rows = right_path(right, step)
            emitted = (*step.emitted(rows)[:-1], token(step, rows))
            return Walk(tuple(rows), len(rows), emitted if emitted[-1] != -1 else emitted[:-1])

        yield detail, walks_of(right, walk)


BONUS: tuple[Hypothesis, ...] = (
    bonus_from_parent,
    bonus_from_row,
)
