"""KV, written: which slot a row's K and V are sent to in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.evidence import KEPT, Group, partly
from treeproof.diagnosis.ground import Ground, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.misplacing import beside_their_columns, to_neighbour
from treeproof.diagnosis.moving import moved
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("slots", "attend", "commit")


def _sent(right: World, slot: Callable[[Row], int]) -> Iterator[tuple[str, World]]:
    """Rows go to this slot; they are read where they should be, or where they went."""
    ground = right.ground
    slots = list(right.slots)
    for row in ground.rows:
        slots[row.flat] = slot(row) % ground.case.layout.num_slots
    written = {slots[row.flat]: (row.flat, row.flat) for row in ground.rows}
    commits = moved(ground, lambda b, row: slots[ground.case.qo_indptr[b] + row])
    world = replace(right, slots=tuple(slots), written=written, commits=commits)
    yield "", world
    went = {right.slots[row.flat]: slots[row.flat] for row in ground.rows}
    seen, uncut = (
        tuple(
            tuple(k._replace(k=went[k.k], v=went[k.v]) if k.v in went else k for k in keys)
            for keys in every
        )
        for every in (right.seen, right.uncut)
    )
    yield "and read from there", replace(world, seen=seen, uncut=uncut)
    # What a launch brings may be read before, or without, the cache.
    yield "and read before", replace(world, written=right.written, left=written)
    yield (
        "and to its own as well",
        replace(world, written=right.written, left={**right.written, **written}),
    )


def _named(right: World, detail: str, slot: Callable[[Row], int]) -> Iterator[tuple[str, World]]:
    for way, world in _sent(right, slot):
        yield f"{detail}{' ' * bool(detail and way)}{way}", world


@hypothesis("slot-is-position", "a row's slot is its position", *_GROUPS)
def slot_is_position(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    yield from _named(right, "", lambda row: row.position)
    yield from _named(right, "its column", lambda row: row.prefix + row.row)
    yield from _named(
        right,
        "the slot of the column of its position",
        lambda row: ground.slot(row.b, row.position),
    )
    # Columns are counted on from a coordinate that is not the number of keys.
    page, shortest = ground.page, min(request.prefix_len for request in ground.requests)
    starts: dict[str, Callable[[Row], int]] = {
        "0": lambda row: 0,
        "half the prefix": lambda row: row.prefix // 2,
        "the number of prefix pages": lambda row: -(-row.prefix // page),
        "the prefix's whole pages": lambda row: row.prefix // page * page,
        "the shortest prefix of the batch": lambda row: shortest,
    }
    for detail, start in starts.items():
        for way, place in (
            ("its row", lambda row: row.row), ("its depth", lambda row: row.depth)
        ):  # fmt: skip
            yield from _named(
                right,
                f"the slot of the column of {way}, counted from {detail}",
                lambda row, start=start, place=place: ground.slot(row.b, start(row) + place(row)),  # type: ignore[misc]
            )


@hypothesis("slot-of-neighbour", "a row is written to another request's slot", *_GROUPS)
def slot_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for name, other in neighbours(ground):

        def by_row(row: Row, other: Callable[[int], int] = other) -> int:
            b = other(row.b)
            return ground.slot(b, ground.requests[b].prefix_len + row.row)

        def by_column(row: Row, other: Callable[[int], int] = other) -> int:
            return ground.slot(other(row.b), row.prefix + row.row)

        def where_it_has(row: Row, other: Callable[[int], int] = other) -> int:
            rows = ground.scene.ledger.row_slots(other(row.b))
            return rows[row.row] if row.row < len(rows) else ground.own(row.b, row.row).v

        yield from _named(right, f"{name} row", by_row)
        yield from _named(right, f"{name} row, where it has one", where_it_has)
        yield from _named(right, f"{name} column", by_column)
        yield f"{name} row, for accepted rows", replace(right, commits=to_neighbour(right, other))


@hypothesis("slot-off-by-one", "a row is written one slot beside its own", *_GROUPS)
def slot_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for by in (1, -1):
        ways: dict[str, Callable[[Row], int]] = {
            "in memory": lambda row, by=by: ground.own(row.b, row.row).v + by,  # type: ignore[misc]
            "among the columns": lambda row, by=by: ground.slot(  # type: ignore[misc]
                row.b, row.prefix + row.row + by
            ),
            "among the columns of whole pages": lambda row, by=by: ground.paged_slot(  # type: ignore[misc]
                row.b, row.prefix + row.row + by
            ),
            "round its request's rows": lambda row, by=by: (
                ground.own(  # type: ignore[misc]
                    row.b, (row.row + by) % len(ground.by_request[row.b])
                ).v
            ),
            "among its request's rows, the end keeps its own": lambda row, by=by: (
                ground.own(  # type: ignore[misc]
                    row.b, min(max(0, row.row + by), len(ground.by_request[row.b]) - 1)
                ).v
            ),
        }
        for detail, slot in ways.items():
            yield from _named(right, f"{by:+d} {detail}", slot)
            yield from _named(
                right,
                f"{by:+d} {detail}, the root excepted",
                lambda row, slot=slot: slot(row) if row.row else ground.own(row.b, 0).v,  # type: ignore[misc]
            )
    for detail, commits in beside_their_columns(right):
        yield detail, replace(right, commits=commits)


@hypothesis(
    "padding-written",
    "padded rows are written to a slot that is not theirs",
    *("slots", "attend", "again"),
)
def padding_written(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    num_slots = ground.case.layout.num_slots

    def after(b: int, row: int) -> int:
        return ground.slot(b, ground.requests[b].prefix_len + row)

    def paged_after(b: int, row: int) -> int:
        return ground.paged_slot(b, ground.requests[b].prefix_len + row)

    targets: dict[str, Callable[[int, int], int]] = {
        "the columns after its rows": after,
        "the columns after its rows, in whole pages": paged_after,
        "the root's": lambda b, row: ground.own(b, 0).v,
        "the last row's": lambda b, row: ground.own(b, -1).v,
        "the last prefix key's": lambda b, row: ground.slot(
            b, max(0, ground.requests[b].prefix_len - 1)
        ),
        "slot 0": lambda b, row: 0,
        "slot 1": lambda b, row: 1,
        "the last slot": lambda b, row: num_slots - 1,
        "the first prefix key's": lambda b, row: ground.slot(b, 0),
        "the first request's root's": lambda b, row: ground.own(0, 0).v,
        "the slot of the padded row's number": lambda b, row: row,
        "the slot of its number in the launch": lambda b, row: ground.case.qo_indptr[b] + row,
        "its request's first rows'": lambda b, row: (
            ground.own(b, row % ground.requests[b].num_nodes).v
        ),
    }
    for detail, target in targets.items():
        slots, written = list(right.slots), dict(right.written)
        for flat, (b, row) in enumerate(ground.scene.rows):
            if row >= ground.requests[b].num_nodes:
                slots[flat] = target(b, row) % num_slots
        # A launch writes its rows in order, so that padding comes last where slots meet.
        for flat in range(len(slots)):
            if right.slots[flat] != slots[flat] or slots[flat] in written:
                written.pop(slots[flat], None)
                written[slots[flat]] = (flat, flat)
        free = ground.case.layout.pad_slot
        declared = tuple(
            -1 if true < 0 and slot == free else slot
            for slot, true in zip(slots, right.slots, strict=True)
        )
        yield detail, replace(right, slots=declared, written=written)
        yield f"{detail}, after attention", replace(right, slots=declared, left=written)
        real = {**written, **right.written}
        yield f"{detail}, real rows last", replace(right, slots=declared, written=real)
    yield "where an earlier batch had rows", replace(right, again=_slots_left)


def _slots_left(world: World, earlier: VerifyCase) -> World:
    """A buffer kept between batches: padded rows keep what live rows at their place had."""
    before = Ground.of(earlier).row_slot
    slots = tuple(
        before[flat] if own < 0 and flat < len(before) else own
        for flat, own in enumerate(world.slots)
    )
    return replace(world, slots=slots)


@hypothesis("write-skipped", "a row's K and V are not written, or not all, or too late", "attend")
def write_skipped(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    order = {row.flat: i for i, row in enumerate(ground.rows)}
    rows: dict[str, Callable[[Row], bool]] = {
        "all rows": lambda row: True,
        "the root": lambda row: row.row == 0,
        "all but the root": lambda row: row.row > 0,
        "the first row of the launch": lambda row: row.flat == ground.rows[0].flat,
        "the last row of each request": lambda row: row.row == len(ground.by_request[row.b]) - 1,
        "the last row of the launch": lambda row: row.flat == ground.rows[-1].flat,
        "leaves": lambda row: not any(r.parent == row.row for r in ground.by_request[row.b]),
        "all requests but the first": lambda row: row.b > 0,
        "the last request": lambda row: row.b == len(ground.requests) - 1,
        "the first request": lambda row: row.b == 0,
        "odd rows": lambda row: row.row % 2 == 1,
        "even rows": lambda row: row.row % 2 == 0,
        "odd rows of the launch": lambda row: order[row.flat] % 2 == 1,
        "even rows of the launch": lambda row: order[row.flat] % 2 == 0,
        "siblings but the first": lambda row: (
            row.row > 0
            and any(r.parent == row.parent and r.row < row.row for r in ground.by_request[row.b])
        ),
    }
    for detail, skipped in rows.items():
        lost = {right.slots[row.flat] for row in ground.rows if skipped(row)}
        written = {slot: held for slot, held in right.written.items() if slot not in lost}
        yield detail, replace(right, written=written)
        yield f"{detail}, where it is read before", replace(right, left=written)
        yield (
            f"{detail}, until it has been read",
            replace(right, written=written, left=right.written),
        )
        part = {
            slot: (partly(k), partly(v)) for slot, (k, v) in right.written.items() if slot in lost
        }
        yield f"{detail}, some lanes or heads of it", replace(right, left={**written, **part})


@hypothesis("one-cache-only", "K moves without V, or V without K", "attend", "commit")
def one_cache_only(right: World) -> Iterator[tuple[str, World]]:
    still = moved(right.ground, lambda b, row: right.ground.own(b, 0).v, keep=True)
    for kept in ("v", "k"):
        written = {
            slot: (KEPT, row) if kept == "k" else (row, KEPT)
            for slot, (row, _) in right.written.items()
        }
        commits = tuple(
            replace(commit, **{kept: getattr(unmoved, kept)})
            for commit, unmoved in zip(right.commits, still, strict=True)
        )
        yield f"{kept.upper()} is left as it was", replace(right, written=written, commits=commits)
        yield f"{kept.upper()} is left as it was, and read before", replace(right, left=written)


SLOTS: tuple[Hypothesis, ...] = (
    slot_is_position,
    slot_of_neighbour,
    slot_off_by_one,
    padding_written,
    write_skipped,
    one_cache_only,
)
