"""Visibility and keys of an earlier call on the same object, used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.ground import Ground, Key, Row, Seen
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World


def _seen(world: World, keys_of: dict[int, tuple[Key, ...]]) -> Seen:
    """Keys by flat row, inside the window; a row that has none keeps its own."""
    ground = world.ground
    return tuple(
        ground.cut(keys_of[row.flat], row.position) if row.flat in keys_of else own
        for row, own in zip(ground.rows, world.seen, strict=True)
    )


@hypothesis("mask-stale", "the tree mask of an earlier call is used again", "again", narrow="no")
def mask_stale(right: World) -> Iterator[tuple[str, World]]:
    def by_request(world: World, earlier: VerifyCase) -> Seen:
        """Row r of request b under the mask of row r of the earlier request b."""
        ground, before = world.ground, Ground.of(earlier)
        found = {}
        for row in ground.rows:
            if row.b < len(before.requests) and row.row < len(before.by_request[row.b]):
                path = before.row(row.b, row.row).path
                rows = [r for r in path if r < len(ground.by_request[row.b])]
                found[row.flat] = ground.reads(row, rows)
        return _seen(world, found)

    def cells(world: World, earlier: VerifyCase, *, prefix: bool) -> Seen:
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
        return _seen(world, found)

    yield "row by row", replace(right, again=by_request)
    yield "cell by cell", replace(right, again=lambda w, e: cells(w, e, prefix=False))
    yield (
        "cell by cell, prefix included",
        replace(right, again=lambda w, e: cells(w, e, prefix=True)),
    )


@hypothesis("stale-plan", "the key lists of an earlier call are used again", "again", narrow="no")
def stale_plan(right: World) -> Iterator[tuple[str, World]]:
    def lists(world: World, earlier: VerifyCase) -> Seen:
        """The list of the row at the same place in the launch."""
        before = Ground.of(earlier)
        of_flat = {row.flat: row for row in before.rows}
        found = {
            row.flat: before.reads(of_flat[row.flat])
            for row in world.ground.rows
            if row.flat in of_flat
        }
        return tuple(
            before.cut(found[row.flat], of_flat[row.flat].position) if row.flat in found else own
            for row, own in zip(world.ground.rows, world.seen, strict=True)
        )

    def prefixes(world: World, earlier: VerifyCase) -> Seen:
        """The earlier prefix of the request, and this call's path."""
        ground, before = world.ground, Ground.of(earlier)

        def keys(row: Row) -> tuple[Key, ...]:
            return (*before.prefix(row.b), *(ground.own(row.b, r) for r in row.path))

        found = {row.flat: keys(row) for row in ground.rows if row.b < len(before.requests)}
        return _seen(world, found)

    def slots(world: World, earlier: VerifyCase) -> Seen:
        """As many keys as now, out of the earlier token table."""
        ground, before = world.ground, Ground.of(earlier)

        def keys(row: Row) -> tuple[Key, ...]:
            prefix = tuple(before.key(row.b, c) for c in range(row.prefix))
            return (*prefix, *(ground.own(row.b, r) for r in row.path))

        found = {row.flat: keys(row) for row in ground.rows if row.b < len(before.requests)}
        return _seen(world, found)

    yield "row by row", replace(right, again=lists)
    yield "of the prefix", replace(right, again=prefixes)
    yield "of the prefix, at this call's length", replace(right, again=slots)


STALE: tuple[Hypothesis, ...] = (mask_stale, stale_plan)
