"""What an object keeps from an earlier call and uses again: masks, lists, fields, numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.ground import Ground, Key, Row, Seen
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.old_lengths import OLD_LENGTHS
from treeproof.diagnosis.walking import along
from treeproof.diagnosis.world import World, truth

Later = Callable[[World, VerifyCase], World]


def _of_that_size(later: Later) -> Later:
    """Kept by the number of requests and rows: an earlier batch of another size leaves nothing."""

    def same_size(world: World, earlier: VerifyCase) -> World:
        return later(world, earlier) if _size(earlier) == _size(world.ground.case) else world

    return same_size


def _size(case: VerifyCase) -> tuple[int, int]:
    return len(case.requests), case.num_rows


def _ways(right: World, detail: str, later: Later) -> Iterator[tuple[str, World]]:
    yield detail, replace(right, again=later)
    yield f"{detail}, kept by size", replace(right, again=_of_that_size(later))


def _reading(world: World, uncut: Seen, seen: Seen) -> World:
    """Rows read these keys; slots past this cache wrap around."""
    slots = world.ground.case.layout.num_slots

    def wrapped(every: Seen) -> Seen:
        return tuple(
            tuple(key._replace(k=key.k % slots, v=key.v % slots) for key in keys) for keys in every
        )

    return replace(world, uncut=wrapped(uncut), seen=wrapped(seen))


def _seen(world: World, keys_of: dict[int, tuple[Key, ...]]) -> World:
    """Keys by flat row before the window; a row that has none keeps its own."""
    ground = world.ground
    uncut = tuple(
        keys_of.get(row.flat, own) for row, own in zip(ground.rows, world.uncut, strict=True)
    )
    seen = tuple(
        ground.cut(keys_of[row.flat], row.position) if row.flat in keys_of else own
        for row, own in zip(ground.rows, world.seen, strict=True)
    )
    return _reading(world, uncut, seen)


@hypothesis("mask-stale", "the tree mask of an earlier call is used again", "again", narrow="no")
def mask_stale(right: World) -> Iterator[tuple[str, World]]:
    def by_request(world: World, earlier: VerifyCase) -> World:
        """Row r of request b under the mask of row r of the earlier request b."""
        ground, before = world.ground, Ground.of(earlier)
        found = {}
        for row in ground.rows:
            if row.b < len(before.requests) and row.row < len(before.by_request[row.b]):
                path = before.row(row.b, row.row).path
                rows = [r for r in path if r < len(ground.by_request[row.b])]
                found[row.flat] = ground.reads(row, rows)
        return replace(_seen(world, found), masks_alone=True)

    def cells(world: World, earlier: VerifyCase, *, prefix: bool) -> World:
        """The flat mask of the earlier call, read at the places of this one."""
        ground, before = world.ground, Ground.of(earlier)
        flat: list[bool] = []
        for b, request in enumerate(before.requests):
            paths = [set(r.path) for r in before.by_request[b]] + [{0}] * request.pad_rows
            for path in paths:
                flat += [True] * (request.prefix_len if prefix else 0)
                flat += [column in path for column in range(request.num_rows)]
        found, start = {}, 0
        for b, request in enumerate(ground.requests):
            p = request.prefix_len if prefix else 0
            for row in ground.by_request[b]:
                line = flat[start + row.row * (p + request.num_rows) :][: p + request.num_rows]
                line += [False] * (p + request.num_rows - len(line))
                own = [r for r in range(request.num_nodes) if line[p + r]]
                kept = [key for c, key in enumerate(ground.prefix(b)) if not prefix or line[c]]
                found[row.flat] = (*kept, *(ground.own(b, r) for r in own))
            start += request.num_rows * (p + request.num_rows)
        return replace(_seen(world, found), masks_alone=True)

    yield from _ways(right, "row by row", by_request)
    yield from _ways(right, "cell by cell", lambda w, e: cells(w, e, prefix=False))
    yield from _ways(right, "cell by cell, prefix included", lambda w, e: cells(w, e, prefix=True))


@hypothesis(
    "stale-plan", "tables or fields of an earlier call are used again", "again", narrow="no"
)
def stale_plan(right: World) -> Iterator[tuple[str, World]]:
    def lists(world: World, earlier: VerifyCase) -> World:
        """The list of the row at the same place in the launch."""
        before = Ground.of(earlier)
        of_flat = {row.flat: row for row in before.rows}
        found = {
            row.flat: before.reads(of_flat[row.flat])
            for row in world.ground.rows
            if row.flat in of_flat
        }
        uncut = tuple(
            found.get(row.flat, own)
            for row, own in zip(world.ground.rows, world.uncut, strict=True)
        )
        seen = tuple(
            before.cut(found[row.flat], of_flat[row.flat].position) if row.flat in found else own
            for row, own in zip(world.ground.rows, world.seen, strict=True)
        )
        return _reading(world, uncut, seen)

    def prefixes(world: World, earlier: VerifyCase) -> World:
        """The earlier prefix of the request, and this call's path."""
        ground, before = world.ground, Ground.of(earlier)

        def keys(row: Row) -> tuple[Key, ...]:
            return (*before.prefix(row.b), *(ground.own(row.b, r) for r in row.path))

        found = {row.flat: keys(row) for row in ground.rows if row.b < len(before.requests)}
        return _seen(world, found)

    def slots(world: World, earlier: VerifyCase) -> World:
        """As many keys as now, out of the earlier token table."""
        ground, before = world.ground, Ground.of(earlier)

        def keys(row: Row) -> tuple[Key, ...]:
            prefix = tuple(before.key(row.b, c) for c in range(row.prefix))
            return (*prefix, *(ground.own(row.b, r) for r in row.path))

        found = {row.flat: keys(row) for row in ground.rows if row.b < len(before.requests)}
        return _seen(world, found)

    yield from _ways(right, "row by row", lists)
    for detail, later in OLD_LENGTHS.items():
        yield from _ways(right, detail, later)
    yield from _ways(right, "of the prefix", prefixes)
    yield from _ways(right, "of the prefix, at this call's length", slots)
    for name in ("tokens", "positions", "slots", "links"):
        yield from _ways(right, name, partial(_field, name=name))
    yield from _ways(right, "links down and across", _links)
    yield from _ways(right, "links that are walked", _walks)
    yield from _ways(right, "slots that are written", _written)


def _field(world: World, earlier: VerifyCase, *, name: str) -> World:
    """A field as far as the earlier batch had one, row by row or request by request."""
    own, theirs = getattr(world, name), getattr(truth(Ground.of(earlier)), name)
    if name == "links":
        links = {
            table: (*theirs[table], *lines[len(theirs[table]) :]) for table, lines in own.items()
        }
        return replace(world, links={t: links[t][: len(own[t])] for t in own})
    kept: dict[str, Any] = {name: (*theirs, *own[len(theirs) :])[: len(own)]}
    return replace(world, **kept)


def _links(world: World, earlier: VerifyCase) -> World:
    """First children and next siblings alone."""
    kept = _field(world, earlier, name="links").links
    names = ("retrieve_next_token", "retrieve_next_sibling")
    return replace(world, links={**world.links, **{name: kept[name] for name in names}})


def _walks(world: World, earlier: VerifyCase) -> World:
    """Accept follows the earlier links, over this call's tokens."""
    if _size(earlier) != _size(world.ground.case):
        return world
    return replace(world, walks=along(world.ground, truth(Ground.of(earlier)).links))


def _written(world: World, earlier: VerifyCase) -> World:
    """Rows go to the slots of the rows at the same place in the launch; past the end, to the last."""
    last = world.ground.case.layout.num_slots - 1
    theirs = truth(Ground.of(earlier)).slots
    written = dict(world.written)
    for slot in list(written):
        if written[slot][0] < len(theirs):
            del written[slot]
    for flat in (row.flat for row in world.ground.rows):
        if flat < len(theirs):
            slot = min(theirs[flat], last)
            if slot >= 0:
                written[slot] = (flat, flat)
    return replace(world, written=written)


STALE: tuple[Hypothesis, ...] = (mask_stale, stale_plan)
