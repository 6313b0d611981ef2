"""Whether evidence is what a statement predicts, group by group and to the last cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from treeproof.diagnosis.engine import same_forward
from treeproof.diagnosis.evidence import (
    Again,
    Attended,
    Commit,
    Counts,
    Group,
    Observation,
    TableReads,
)
from treeproof.diagnosis.ground import Ground, Seen
from treeproof.diagnosis.kept import Kept
from treeproof.diagnosis.layered import same_layers
from treeproof.diagnosis.merging import same_merge
from treeproof.diagnosis.recomputed import outputs
from treeproof.diagnosis.rerun import as_counts, origins, row_weights, writes_of
from treeproof.diagnosis.world import World, same_statement, truth

_LAUNCHED: frozenset[Group] = frozenset({"accept", "commit", "attend", "merge", "forward"})
"""Compared last: launches take far longer than tables, and are seldom reached."""
_COUNT = 0.3
"""Counts come out within this of a whole number, as in `properties.visibility`."""


def fits(seen: Observation, group: Group, world: World) -> bool:
    """Whether all that was seen in this group is what `world` predicts."""
    found = seen.found[group]
    if group == "attend":
        return not (world.masks_alone and _listed(seen)) and _same_attended(found, world, seen)
    if group == "layers":
        return same_layers(found, world.layered, world.ground, seen.numerics, seen.capabilities)
    if group == "again":
        return all(_fits_all(one, world.after(one.earlier), seen) for one in found)
    if group == "forward":
        return same_forward(found, world.engine)
    if group == "merge":
        return same_merge(found, world.predict(group, seen), seen)
    if group == "tables":
        listed = world.masks_alone and _listed(seen)
        return not listed and all(_same_table(table, world) for table in found)
    if group == "commit":
        predicted = world.commits
        return len(found) == len(predicted) and all(
            _same_commit(a, b, world, turn)
            for turn, (a, b) in enumerate(zip(found, predicted, strict=True))
        )
    return bool(found == world.predict(group, seen))


def _listed(seen: Observation) -> bool:
    """Whether lists say what is read, so that there is no mask to go by."""
    return any(table.closed for table in seen.found.get("tables", ()))


def _fits_all(one: Again, world: World, seen: Observation) -> bool:
    """Whether all that is wrong is predicted; where nothing is, nothing must be predicted."""
    these, groups = replace(seen, found=one.found), told_by(one)

    def held_against(what: World) -> tuple[Again, bool]:
        return one, all(fits(these, group, what) for group in groups)

    right = truth(world.ground)
    if all(same_statement(world, right, group) for group in groups):
        # So it is with most statements. What is kept holds `one`, so that its id stays its own.
        return bool(world.ground.kept(("again", id(one)), lambda: held_against(right))[1])
    return held_against(world)[1]


def told_by(one: Again) -> list[Group]:
    """Groups that a statement is held against, launches last: they take far longer than tables, and
    are seldom reached."""
    groups = sorted(one.found, key=lambda group: group in _LAUNCHED)
    return [group for group in groups if group in one.wrong or not one.wrong]


def _same_attended(found: Attended, world: World, seen: Observation) -> bool:
    # Counts first: outputs take far longer, and are seldom reached.
    return _same_reads(found, world) and _same_numbers(found, world, seen)


_WRITES: Kept[bool] = Kept(1024)
_READS: Kept[bool] = Kept(8192)
_ORDER: Kept[list[int]] = Kept(64)


def _same_reads(found: Attended, world: World) -> bool:
    if not _WRITES.of(
        *(found, world.ground, world.written, world.left),
        make=lambda: found.writes is None or dict(found.writes) == dict(writes_of(world)),
    ):
        return False
    return all(_kept_row(found, world, i) for i in _wrong_first(found, world.ground))


def _wrong_first(found: Attended, ground: Ground) -> list[int]:
    """Rows that do not read what is right, and then the others, of which most statements say so."""
    right = truth(ground)
    rows = range(len(ground.rows))
    return _ORDER.of(
        found, ground, make=lambda: sorted(rows, key=lambda i: _kept_row(found, right, i))
    )


def _kept_row(found: Attended, world: World, i: int) -> bool:
    """What is read does not depend on a plain law, of which there are many."""
    if not world.law.plain:
        return _same_row(found, world, i)
    others = None if world.heads is None else world.others[i]
    about = world.ground.rows[i], world.seen[i], world.written, world.heads, others
    return _READS.of(found, *about, make=lambda: _same_row(found, world, i))


def _same_row(found: Attended, world: World, i: int) -> bool:
    row = world.ground.rows[i]
    reading = next(reading for reading in found.reads if reading.request == row.b)
    low, high = row_weights(world, i, origins(world))
    if (high[-1] > 0) != (row.flat in found.unowned):
        return False
    columns = list(reading.slots)
    low, high = as_counts(low[columns], high[columns])
    return same_counts(reading.high[row.row], high) and same_counts(reading.low[row.row], low)


def same_counts(a: Counts, b: Counts) -> bool:
    """Whether two round to the same whole numbers, or nearly."""
    return not (np.abs(a - b) >= _COUNT).any()


def _same_numbers(found: Attended, world: World, seen: Observation) -> bool:
    """Row by row, so that a wrong statement costs one row."""
    if found.out is None:
        return True
    for i in range(len(found.out)):
        out, lse, limit, lse_limit = outputs(world, [i], seen.numerics, seen.capabilities)
        if found.limit is not None and found.lse_limit is not None:
            limit, lse_limit = limit + found.limit[i], lse_limit + found.lse_limit[i]
        if not near(found.out[i], out[0], limit[0]):
            return False
        if found.lse is not None and not near(found.lse[i], lse[0], lse_limit[0]):
            return False
    return True


def near(a: Tensor, b: Tensor, limit: Tensor) -> bool:
    """Whether two are equal up to this."""
    equal = a == b  # infinities among them
    return bool((equal | ((a - b).abs() <= limit)).all())


def _same_table(table: TableReads, world: World) -> bool:
    return same_table(table.counts, ways_to_name(table, world))


def same_table(counts: Counts, ways: Sequence[Counts]) -> bool:
    """Whether each cell is as in one of the ways in which a table may say what is read."""
    alike = [np.abs(counts - way) < _COUNT for way in ways]
    return bool(alike) and bool(np.logical_or.reduce(alike).all())


def ways_to_name(table: TableReads, world: World) -> list[Counts]:
    """What a table may hold under a statement; none where a list would name what it does not."""
    ways = [world.table_counts(table, world.seen)]
    if table.window_free:
        # The window is cut later: what lies outside it may be named or not.
        ways.append(world.table_counts(table, _held(world, table.request)))
    return [way for way in ways if way is not None]


def _held(world: World, request: int) -> Seen:
    """What rows would read without a window; cells of evicted pages say nothing."""
    gone = world.ground.case.evicted_columns(request)
    return tuple(tuple(key for key in keys if key.at >= gone) for keys in world.uncut)


def _same_commit(found: Commit, predicted: Commit, world: World, turn: int) -> bool:
    judged = world.ground.moves[turn].judged.cpu().numpy()
    return bool(
        found.seq_lens == predicted.seq_lens
        and found.next_root == predicted.next_root
        and (found.k == predicted.k)[judged].all()
        and (found.v == predicted.v)[judged].all()
        and all(
            (a == z)[judged].all()
            for a, z in zip(found.companions, predicted.companions, strict=True)
        )
    )
