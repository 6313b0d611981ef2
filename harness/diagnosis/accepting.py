"""Traversal, measured: how acceptance goes astray on right links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from treeproof.diagnosis.evidence import Walk
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.links import padding_linked
from treeproof.diagnosis.walking import Step, as_walk, most_rows, walked
from treeproof.diagnosis.world import World


def walks_of(right: World, walk: Callable[[Step], Walk]) -> World:
    return replace(right, walks=walked(right.ground, walk))


Next = Callable[[Step, Sequence[int]], int | None]
"""The row taken after these; None where the walk ends."""


def _going(right: World, after: Next) -> World:
    most = most_rows(right.ground)

    def walk(step: Step) -> Walk:
        rows = [0]
        while len(rows) < most:
            row = after(step, rows)
            if row is None:
                break
            rows.append(row)
        return as_walk(step, rows)

    return walks_of(right, walk)


def _right_rows(right: World, step: Step, rows: Sequence[int]) -> int | None:
    """The child that the last row predicts."""
    return next((r for r in step.children(rows[-1]) if step.draft(r) == step.want(rows[-1])), None)


def right_path(right: World, step: Step) -> list[int]:
    rows = [0]
    while (row := _right_rows(right, step, rows)) is not None:
        rows.append(row)
    return rows


@hypothesis(
    "walk-first-child-only", "acceptance looks at first children and not at siblings", "accept"
)
def walk_first_child_only(right: World) -> Iterator[tuple[str, World]]:
    def first(step: Step, rows: Sequence[int]) -> int | None:
        children = step.children(rows[-1])[:1]
        return next((r for r in children if step.draft(r) == step.want(rows[-1])), None)

    yield "", _going(right, first)

    def two(step: Step, rows: Sequence[int]) -> int | None:
        children = step.children(rows[-1])[:2]
        return next((r for r in children if step.draft(r) == step.want(rows[-1])), None)

    yield "the first two", _going(right, two)

    def below_root(step: Step, rows: Sequence[int]) -> int | None:
        return first(step, rows) if rows[-1] == 0 else _right_rows(right, step, rows)

    yield "of the root", _going(right, below_root)

    def next_row(step: Step, rows: Sequence[int]) -> int | None:
        """A chain's walk: the child of a row is the row after it."""
        after = rows[-1] + 1
        inside = after < step.ground.requests[step.b].num_rows
        return after if inside and step.draft(after) == step.want(rows[-1]) else None

    yield "and takes the next row for it", _going(right, next_row)


@hypothesis(
    "first-draft-unchecked", "the first draft is accepted whatever the target predicts", "accept"
)
def first_draft_unchecked(right: World) -> Iterator[tuple[str, World]]:
    def first(step: Step, rows: Sequence[int]) -> int | None:
        if len(rows) == 1:
            return next(iter(step.children(0)), None)
        return _right_rows(right, step, rows)

    yield "", _going(right, first)

    def unless_matched(step: Step, rows: Sequence[int]) -> int | None:
        matched = _right_rows(right, step, rows)
        return first(step, rows) if matched is None and len(rows) == 1 else matched

    yield "where no other matches", _going(right, unless_matched)

    def last(step: Step, rows: Sequence[int]) -> int | None:
        matched = _right_rows(right, step, rows)
        if matched is None and len(rows) == 1:
            return next(iter(reversed(step.children(0))), None)
        return matched

    yield "the last child, where no other matches", _going(right, last)

    def assumed(step: Step) -> Walk:
        """The target is not asked after the root: row 1 stands for what it would say."""
        if step.ground.requests[step.b].num_rows < 2:
            return as_walk(step, [0])
        step = step.believing({0: step.draft(1)})
        return as_walk(step, right_path(right, step))

    yield "and emitted", walks_of(right, assumed)


@hypothesis("walk-stops-early", "acceptance stops before the path ends", "accept")
def walk_stops_early(right: World) -> Iterator[tuple[str, World]]:
    def cut(keep: Callable[[Step, list[int]], int]) -> World:
        def walk(step: Step) -> Walk:
            rows = right_path(right, step)
            return as_walk(step, rows[: max(1, keep(step, rows))])

        return walks_of(right, walk)

    deepest = most_rows(right.ground)
    yield "one row early", cut(lambda step, rows: len(rows) - 1)
    yield "one row early at full depth", cut(lambda step, rows: min(len(rows), deepest - 1))
    for most in (1, 2, 3, 4):
        yield f"after {most} rows", cut(lambda step, rows, most=most: min(len(rows), most))  # type: ignore[misc]
    yield (
        "one row early at a leaf",
        cut(lambda step, rows: len(rows) - (not step.children(rows[-1]))),
    )
    yield "at half", cut(lambda step, rows: (len(rows) + 1) // 2)

    def until_fork(step: Step, rows: list[int]) -> int:
        return next((i + 1 for i, r in enumerate(rows) if len(step.children(r)) > 1), len(rows))

    yield "at a row with several children", cut(until_fork)
    for most in (16, 32, 64):
        yield (
            f"at row {most}",
            cut(
                lambda step, rows, most=most: next(  # type: ignore[misc]
                    (i for i, row in enumerate(rows) if row >= most), len(rows)
                )
            ),
        )


@hypothesis(
    "walk-compares-parent",
    "a draft is compared with the prediction of the wrong row of its path",
    "accept",
)
def walk_compares_parent(right: World) -> Iterator[tuple[str, World]]:
    wants: dict[str, Callable[[Step, Sequence[int], int], int]] = {
        "its grandparent's": lambda step, rows, r: step.want(rows[max(0, len(rows) - 2)]),
        "its own": lambda step, rows, r: step.want(r),
        "the root's": lambda step, rows, r: step.want(0),
        "the row before it's": lambda step, rows, r: step.want(r - 1),
        "that of its number in the path": lambda step, rows, r: step.want(len(rows) - 1),
        "the last row's": lambda step, rows, r: step.want(
            step.ground.requests[step.b].num_nodes - 1
        ),
        "the next row's": lambda step, rows, r: step.want(rows[-1] + 1),
        "the row before its parent's": lambda step, rows, r: step.want(max(0, rows[-1] - 1)),
    }
    for detail, want in wants.items():

        def after(
            step: Step,
            rows: Sequence[int],
            want: Callable[[Step, Sequence[int], int], int] = want,
        ) -> int | None:
            children = step.children(rows[-1])
            return next((r for r in children if step.draft(r) == want(step, rows, r)), None)

        yield detail, _going(right, after)
    first = right.ground.case.qo_indptr

    def unshifted(step: Step, rows: Sequence[int]) -> int | None:
        """Rows of the request taken for rows of the launch."""
        want = step.predicted[rows[-1]]
        return next((r for r in step.children(rows[-1]) if step.draft(r) == want), None)

    if len(first) > 2:
        yield "that of the same row of the first request", _going(right, unshifted)


@hypothesis(
    "padding-accepted", "acceptance walks into padded rows, or links lead there", "links", "accept"
)
def padding_accepted(right: World) -> Iterator[tuple[str, World]]:
    def padded(step: Step) -> range:
        request = step.ground.requests[step.b]
        return range(request.num_nodes, request.num_rows)

    def from_anywhere(step: Step, rows: Sequence[int]) -> int | None:
        matched = _known(step, rows)
        if matched is None and step.want(rows[-1]) == 0:
            return next((r for r in padded(step) if r not in rows), None)
        return matched

    def _known(step: Step, rows: Sequence[int]) -> int | None:
        if rows[-1] in padded(step):
            return None
        return _right_rows(right, step, rows)

    def from_root(step: Step, rows: Sequence[int]) -> int | None:
        matched = _known(step, rows)
        if matched is None and rows[-1] == 0 and step.want(0) == 0:
            return next(iter(padded(step)), None)
        return matched

    def once(step: Step, rows: Sequence[int]) -> int | None:
        if rows[-1] in padded(step):
            return None
        return from_anywhere(step, rows)

    def from_leaves(step: Step, rows: Sequence[int]) -> int | None:
        matched = _known(step, rows)
        leaf = rows[-1] in padded(step) or not step.children(rows[-1])
        if matched is None and leaf and step.want(rows[-1]) == 0:
            return next((r for r in padded(step) if r not in rows), None)
        return matched

    def whatever_they_predict(step: Step, rows: Sequence[int]) -> int | None:
        matched = _known(step, rows)
        return (
            next((r for r in padded(step) if r not in rows), None) if matched is None else matched
        )

    def last_then_on(step: Step, rows: Sequence[int]) -> int | None:
        """Padding hangs on the last row."""
        matched = _known(step, rows)
        last = rows[-1] == padded(step).start - 1 or rows[-1] in padded(step)
        if matched is None and last and step.want(rows[-1]) == 0:
            return next((r for r in padded(step) if r not in rows), None)
        return matched

    yield "as children of the root", _going(right, from_root)
    yield "as children of every row", _going(right, once)
    yield "as children of every row, one after another", _going(right, from_anywhere)
    yield "below leaves", _going(right, from_leaves)
    yield "below the last row", _going(right, last_then_on)
    yield "whatever is predicted", _going(right, whatever_they_predict)

    def counted(step: Step) -> Walk:
        rows = right_path(right, step)
        padding = step.ground.requests[step.b].pad_rows
        return Walk(tuple(rows), len(rows) + padding, step.emitted(rows))

    yield "in accept_len alone", walks_of(right, counted)
    yield from padding_linked(right)


@hypothesis("accept-len-off-by-one", "accept_len is one off from the rows accepted", "accept")
def accept_len_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    for by in (-1, 1):

        def walk(step: Step, by: int = by) -> Walk:
            rows = right_path(right, step)
            return Walk(tuple(rows), len(rows) + by, step.emitted(rows))

        def cut(step: Step, by: int = by) -> Walk:
            rows = right_path(right, step)
            tokens = step.emitted(rows)
            return Walk(tuple(rows), len(rows) + by, tokens[: len(rows) + by])

        yield f"{by:+d}", walks_of(right, walk)
        if by < 0:
            yield f"{by:+d}, tokens cut to it", walks_of(right, cut)


ACCEPTING: tuple[Hypothesis, ...] = (
    walk_first_child_only,
    first_draft_unchecked,
    walk_stops_early,
    walk_compares_parent,
    padding_accepted,
    accept_len_off_by_one,
)
