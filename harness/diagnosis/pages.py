"""Keys: pages that are dropped, misnumbered, or taken to lie side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.evicted import evicted_page_read
from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.listing import with_prefix
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend")


@hypothesis(
    "contiguous-range",
    "the keys of a request are taken from its first slot on, one slot after another",
    *_GROUPS,
)
def contiguous_range(right: World) -> Iterator[tuple[str, World]]:
    ground, slots = right.ground, right.ground.case.layout.num_slots

    def run(row: Row, count: int, first: int, index: int = 0) -> list[Key]:
        return [Key(index + i, (first + i) % slots, (first + i) % slots) for i in range(count)]

    yield "the prefix", with_prefix(right, lambda row: run(row, row.prefix, ground.slot(row.b, 0)))

    def both(row: Row) -> list[Key]:
        first = ground.slot(row.b, 0)
        keys = run(row, row.prefix + len(ground.by_request[row.b]), first)
        path = [keys[row.prefix + r]._replace(at=ground.own(row.b, r).at) for r in row.path]
        return [*keys[: row.prefix], *path]

    yield "prefix and rows", reading(right, both)

    def tree(row: Row) -> list[Key]:
        first = ground.own(row.b, 0).v
        path = [
            Key(ground.own(row.b, r).at, (first + r) % slots, (first + r) % slots) for r in row.path
        ]
        return [*ground.prefix(row.b), *path]

    yield "the rows", reading(right, tree)

    def path(row: Row) -> list[Key]:
        """A path of depth d as the first d + 1 rows."""
        first = [ground.own(row.b, r) for r in range(row.depth + 1)]
        return [
            *ground.prefix(row.b), *(k._replace(at=row.prefix + i) for i, k in enumerate(first))
        ]  # fmt: skip

    yield "a path as the first rows", reading(right, path)

    def path_before(row: Row) -> list[Key]:
        """A path of depth d as the last d + 1 rows up to its own."""
        first = [ground.own(row.b, r) for r in range(max(0, row.row - row.depth), row.row + 1)]
        return [
            *ground.prefix(row.b), *(k._replace(at=row.prefix + i) for i, k in enumerate(first))
        ]  # fmt: skip

    yield "a path as the rows before", reading(right, path_before)


@hypothesis(
    "partial-page-dropped", "the last page of the prefix is left out where it is not full", *_GROUPS
)
def partial_page_dropped(right: World) -> Iterator[tuple[str, World]]:
    page = right.ground.page
    yield (
        "",
        with_prefix(right, lambda row: right.ground.prefix(row.b)[: row.prefix // page * page]),
    )

    def but_first_branch(row: Row) -> tuple[Key, ...]:
        keys = right.ground.prefix(row.b)
        return keys if row.depth == 0 or row.path[1] == 1 else keys[: row.prefix // page * page]

    yield "for all branches but the first", with_prefix(right, but_first_branch)

    def whole_list(row: Row) -> list[Key]:
        keys = right.ground.reads(row)
        return list(keys[: len(keys) // page * page])

    yield "counted with the path", reading(right, whole_list)

    def all_columns(row: Row) -> list[Key]:
        """The request's columns end with the last full page, rows among them."""
        ground = right.ground
        end = (row.prefix + len(ground.by_request[row.b])) // page * page
        path = [ground.own(row.b, r) for r in row.path if row.prefix + r < end]
        return [*ground.prefix(row.b)[:end], *path]

    yield "counted with all rows", reading(right, all_columns)


@hypothesis("past-the-end", "columns behind the request's last key are read", *_GROUPS, "contract")
def past_the_end(right: World) -> Iterator[tuple[str, World]]:
    for detail, world in _past_the_end(right):
        # Whether what lies there was seen to change outputs is up to what a check put there.
        yield detail, replace(world, beside=frozenset({("depends-on-tail", "attend", "")}))


def _past_the_end(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def more(row: Row, count: int, paged: bool) -> list[Key]:
        end = row.prefix + len(ground.by_request[row.b])
        slot_of = ground.paged_slot if paged else ground.slot
        slots = [slot_of(row.b, end + i) for i in range(count)]
        return [*ground.reads(row), *(Key(end + i, s, s) for i, s in enumerate(slots))]

    longest = max(request.num_rows for request in ground.requests)

    def to_page_end(row: Row) -> int:
        return -(row.prefix + len(ground.by_request[row.b])) % ground.page

    for paged, where in ((False, "in the token table"), (True, "in the page")):
        for count in (1, 2):
            yield (
                f"{count} {where}",
                reading(
                    right,
                    lambda row, c=count, p=paged: more(row, c, p),  # type: ignore[misc]
                ),
            )
        yield (
            f"up to the page's end {where}",
            reading(
                right,
                lambda row, p=paged: more(row, to_page_end(row), p),  # type: ignore[misc]
            ),
        )
        yield (
            f"up to the longest request's rows {where}",
            reading(
                right,
                lambda row, p=paged: more(row, longest - len(ground.by_request[row.b]), p),  # type: ignore[misc]
            ),
        )

    def whole_pages(row: Row) -> list[Key]:
        """Of the last page of the prefix all keys, whatever follows the prefix there."""
        end = -(-row.prefix // ground.page) * ground.page
        behind = [(c, ground.paged_slot(row.b, c)) for c in range(row.prefix, end)]
        return [*ground.prefix(row.b), *(Key(c, s, s) for c, s in behind)]

    yield "to the end of the prefix's last page", with_prefix(right, whole_pages)


@hypothesis("page-units", "page numbers are taken for slots, or slots for page numbers", *_GROUPS)
def page_units(right: World) -> Iterator[tuple[str, World]]:
    ground, page, slots = right.ground, right.ground.page, right.ground.case.layout.num_slots
    if page == 1:
        return
    maps: dict[str, Callable[[int], int]] = {
        "a page number is read as a slot": lambda slot: slot // page + slot % page,
        "a page number is read as the slot of all its keys": lambda slot: slot // page,
        "a slot is read as a page number": lambda slot: (
            min(slot * page, slots - page) + slot % page
        ),
        "the first slot of a page is read as its number": lambda slot: (
            (slot // page * page * page + slot % page) % slots
        ),
    }
    for detail, other in maps.items():

        def prefix(row: Row, other: Callable[[int], int] = other) -> list[Key]:
            return [k._replace(k=other(k.v), v=other(k.v)) for k in ground.prefix(row.b)]

        yield detail, with_prefix(right, prefix)

    def pages_as_keys(row: Row) -> list[Key]:
        """As many keys as there are pages."""
        return list(ground.prefix(row.b)[: -(-row.prefix // page)])

    yield "the prefix is as many keys long as it has pages", with_prefix(right, pages_as_keys)


@hypothesis("page-off-by-one", "keys are read from the page before or after their own", *_GROUPS)
def page_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    ground, page, slots = right.ground, right.ground.page, right.ground.case.layout.num_slots
    for by in (1, -1):

        def logical(row: Row, by: int = by) -> list[Key]:
            """The next entry of the page list, at the same place in the page."""
            return [
                Key(c, slot, slot)
                for c in range(row.prefix)
                for slot in [ground.paged_slot(row.b, c + by * page)]
            ]

        yield f"{by:+d} in the request's list", with_prefix(right, logical)

        def physical(row: Row, by: int = by) -> list[Key]:
            return [
                k._replace(k=(k.v + by * page) % slots, v=(k.v + by * page) % slots)
                for k in ground.prefix(row.b)
            ]

        yield f"{by:+d} in memory", with_prefix(right, physical)

        def last_only(row: Row, by: int = by) -> list[Key]:
            keys = ground.prefix(row.b)
            start = (row.prefix - 1) // page * page
            moved = [
                k._replace(k=(k.v + by * page) % slots, v=(k.v + by * page) % slots)
                for k in keys[start:]
            ]
            return [*keys[:start], *moved]

        yield f"{by:+d} in memory for the last page", with_prefix(right, last_only)


PAGES: tuple[Hypothesis, ...] = (
    contiguous_range,
    partial_page_dropped,
    past_the_end,
    page_units,
    page_off_by_one,
    evicted_page_read,
)
