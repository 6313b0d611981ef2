"""Keys: pages that the window has left behind, given back and read all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.ground import Key, Row, Seen
from treeproof.diagnosis.hypothesis import hypothesis
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World


@hypothesis(
    "evicted-page-read", "pages that the window has left behind are read", "tables", "attend"
)
def evicted_page_read(right: World) -> Iterator[tuple[str, World]]:
    ground, window = right.ground, right.ground.window
    if window is None or not ground.case.layout.evicted:
        return

    def all_gone(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        gone = ground.case.evicted_columns(row.b)
        return [k for k in keys if k.at < gone or row.position - window < k.at]

    def last_gone(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        gone = ground.case.evicted_columns(row.b)
        return [k for k in keys if k.at == gone - 1 or row.position - window < k.at]

    def last_page(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        gone = ground.case.evicted_columns(row.b)
        low = gone - ground.page
        return [k for k in keys if low <= k.at < gone or row.position - window < k.at]

    for detail, kept in (
        ("all of them", all_gone), ("the last key", last_gone), ("the last page", last_page)
    ):  # fmt: skip
        seen = tuple(
            tuple(kept(row, keys)) for row, keys in zip(ground.rows, right.uncut, strict=True)
        )
        yield detail, replace(right, seen=seen)
    for detail, slot in _given_back(right):

        def whole(row: Row, slot: Callable[[int, int], int] = slot) -> list[Key]:
            """Nothing is cut; cells of pages that were given back name this."""
            gone = ground.case.evicted_columns(row.b)
            named = [Key(c, s, s) for c in range(gone) for s in [slot(row.b, c)]]
            return [*named, *ground.reads(row)[gone:]]

        every = tuple(tuple(whole(row)) for row in ground.rows)
        anything = any(ground.case.evicted_columns(b) for b in range(len(ground.requests)))
        yield f"with all behind them{detail}", replace(right, seen=_uncut(right, every, False))
        if anything:
            batch = _uncut(right, every, True)
            yield f"with all behind them{detail}, in the whole batch", replace(right, seen=batch)


def _uncut(right: World, every: Seen, whole_batch: bool) -> Seen:
    """Every key, in the requests that have lost pages or in all."""
    gone = right.ground.case.evicted_columns
    return tuple(
        all_of if whole_batch or gone(row.b) else own
        for row, all_of, own in zip(right.ground.rows, every, right.seen, strict=True)
    )


def _given_back(right: World) -> Iterator[tuple[str, Callable[[int, int], int]]]:
    """What cells of pages name that were given back: padding, or what has the pages by now."""
    ground = right.ground
    yield "", ground.slot
    following: list[tuple[str, Callable[[int], int]]] = [("its own", lambda b: b)]
    following += list(neighbours(ground))[:2]
    if len(ground.requests) == 1:  # round a batch of one the next request is the same
        following += [("the next request's", lambda b: b), ("the previous request's", lambda b: b)]
    for whose, other in following:
        yield f", its pages now those of {whose} root", lambda b, c, o=other: ground.own(o(b), 0).v  # type: ignore[misc]

        def row(b: int, c: int, o: Callable[[int], int] = other) -> int:
            rows = ground.by_request[o(b)]
            return ground.own(o(b), c % len(rows)).v

        yield f", its pages now those of {whose} rows", row
