"""Keys: which list stands in for the prefix and the rows of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.keys_not_values import keys_not_values
from treeproof.diagnosis.listing import with_prefix
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend", "forward")


@hypothesis("neighbour-request", "a request reads the key list of another one", *_GROUPS)
def neighbour_request(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for name, other in neighbours(ground):

        def prefix(row: Row, other: Callable[[int], int] = other) -> list[Key]:
            """Its own number of keys, out of the other's list."""
            return [ground.key(other(row.b), c) for c in range(row.prefix)]

        yield f"{name}, for the prefix", with_prefix(right, prefix)

        def whole_prefix(row: Row, other: Callable[[int], int] = other) -> tuple[Key, ...]:
            return ground.prefix(other(row.b))

        yield f"{name}, for the prefix and its length", with_prefix(right, whole_prefix)

        def as_far(row: Row, other: Callable[[int], int] = other) -> tuple[Key, ...]:
            theirs = ground.prefix(other(row.b))
            return (*theirs[: row.prefix], *ground.prefix(row.b)[len(theirs) :])

        yield f"{name}, for the prefix as far as it goes", with_prefix(right, as_far)

        def columns(row: Row, other: Callable[[int], int] = other) -> list[Key]:
            b = other(row.b)
            path = [ground.key(b, row.prefix + r, row.prefix + ground.row(row.b, r).depth)
                    for r in row.path]  # fmt: skip
            return [*(ground.key(b, c) for c in range(row.prefix)), *path]

        yield f"{name}, for prefix and rows", reading(right, columns)

        def rows_of(row: Row, other: Callable[[int], int] = other) -> list[Key]:
            b = other(row.b)
            start = ground.requests[b].prefix_len
            path = [ground.key(b, start + r, row.prefix + ground.row(row.b, r).depth)
                    for r in row.path]  # fmt: skip
            return [*ground.prefix(row.b), *path]

        yield f"{name}, for its rows", reading(right, rows_of)


@hypothesis("prefix-dropped", "rows read no prefix key", *_GROUPS)
def prefix_dropped(right: World) -> Iterator[tuple[str, World]]:
    yield "", with_prefix(right, lambda row: ())
    yield (
        "the root excepted",
        with_prefix(right, lambda row: () if row.row else right.ground.prefix(row.b)),
    )


@hypothesis("prefix-last-key-missing", "rows do not read the last prefix key", *_GROUPS)
def prefix_last_key_missing(right: World) -> Iterator[tuple[str, World]]:
    yield "", with_prefix(right, lambda row: right.ground.prefix(row.b)[:-1])


@hypothesis("prefix-first-key-missing", "rows do not read the first prefix key", *_GROUPS)
def prefix_first_key_missing(right: World) -> Iterator[tuple[str, World]]:
    yield "", with_prefix(right, lambda row: right.ground.prefix(row.b)[1:])


@hypothesis("prefix-twice", "rows read the prefix twice", *_GROUPS)
def prefix_twice(right: World) -> Iterator[tuple[str, World]]:
    yield "", with_prefix(right, lambda row: right.ground.prefix(row.b) * 2)


@hypothesis("row-as-request", "a row's number indexes the tables of requests", *_GROUPS)
def row_as_request(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    last = len(ground.requests) - 1
    if last == 0:
        return
    for detail, number in (
        ("in the launch", lambda row: row.flat), ("in its request", lambda row: row.row)
    ):  # fmt: skip
        for clipped, of in (
            ("past the last request the last", lambda n: min(n, last)),
            ("past the last request from the first again", lambda n: n % (last + 1)),
        ):

            def request(
                row: Row, of: Callable[[int], int] = of, number: Callable[[Row], int] = number
            ) -> int:
                return of(number(row))

            yield (
                f"{detail}, {clipped}",
                with_prefix(
                    right,
                    lambda row, request=request: [  # type: ignore[misc]
                        ground.key(request(row), c) for c in range(row.prefix)
                    ],
                ),
            )

            def longest(row: Row, request: Callable[[Row], int] = request) -> tuple[Key, ...]:
                """The other's prefix as far as it goes, then its own."""
                theirs = ground.prefix(request(row))
                return (*theirs[: row.prefix], *ground.prefix(row.b)[len(theirs) :])

            yield f"{detail}, {clipped}, as far as it goes", with_prefix(right, longest)
            yield (
                f"{detail}, {clipped}, with its length",
                with_prefix(
                    right,
                    lambda row, request=request: ground.prefix(request(row)),  # type: ignore[misc]
                ),
            )


@hypothesis("list-cut-short", "key lists end too early", *_GROUPS)
def list_cut_short(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    lengths: dict[str, Callable[[Row], int]] = {
        "at P keys": lambda row: row.prefix,
        "at the root's length": lambda row: row.prefix + 1,
        "two keys short": lambda row: row.position - 1,
        "at half": lambda row: (row.position + 1) // 2,
    }
    half = [ground.prefix(row.b)[: (row.prefix + 1) // 2] for row in ground.rows]
    stale = Key(0, 0, 0)
    by_flat = {row.flat: keys for row, keys in zip(ground.rows, half, strict=True)}
    yield "half of the prefix, rounded up", with_prefix(right, lambda row: by_flat[row.flat])
    yield (
        "half of the prefix, slot 0 in place of the rest",
        with_prefix(
            right,
            lambda row: [
                *by_flat[row.flat],
                *(stale._replace(at=c) for c in range((row.prefix + 1) // 2, row.prefix)),
            ],
        ),
    )
    for detail, length in lengths.items():
        yield (
            detail,
            reading(
                right,
                lambda row, length=length: ground.reads(row)[: max(0, length(row))],  # type: ignore[misc]
            ),
        )
    shortest = min(right.lengths)
    yield (
        "at the shortest prefix of the batch",
        with_prefix(right, lambda row: ground.prefix(row.b)[:shortest]),
    )
    for most in (4, 8, 16, 32, 64):
        yield (
            f"after {most} prefix keys",
            with_prefix(
                right,
                lambda row, most=most: ground.prefix(row.b)[:most],  # type: ignore[misc]
            ),
        )
    yield (
        "half of the prefix",
        with_prefix(right, lambda row: ground.prefix(row.b)[: row.prefix // 2]),
    )
    yield (
        "the last two keys of the prefix",
        with_prefix(right, lambda row: ground.prefix(row.b)[:-2]),
    )
    yield (
        "the first page of the prefix alone",
        with_prefix(right, lambda row: ground.prefix(row.b)[: ground.page]),
    )


KEYS: tuple[Hypothesis, ...] = (
    neighbour_request,
    prefix_dropped,
    prefix_last_key_missing,
    prefix_first_key_missing,
    prefix_twice,
    row_as_request,
    list_cut_short,
    keys_not_values,
)
