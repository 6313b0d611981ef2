"""What statements would show on a case that has not been run, and whether it is the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.agreement import (
    fits,
    near,
    same_counts,
    same_table,
    told_by,
    ways_to_name,
)
from treeproof.diagnosis.evidence import (
    Again,
    Attended,
    Counts,
    Group,
    KernelReads,
    Observation,
    TableReads,
    Writes,
)
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.recomputed import outputs
from treeproof.diagnosis.rerun import as_counts, origins, row_weights, writes_of
from treeproof.diagnosis.world import World, same_statement
from treeproof.generate.related import larger, twin
from treeproof.properties.tables import Slots


def imagined(like: Observation, group: Group, world: World) -> Observation:
    """The evidence of one group if `world` were so."""
    return replace(like, found={**like.found, group: world.predict(group, like)})


@dataclass(eq=False)
class Foretold:
    """What a statement would show on a case; `like` is what `unseen` gives for it.

    Each row of a launch is worked out when it is first asked for, and kept: most statements differ
    in what the first rows read, and numbers take a hundred times as long.
    """

    world: World
    like: Observation
    _counts: dict[int, tuple[Counts, Counts, bool]] = field(default_factory=dict)

    @cached_property
    def writes(self) -> Writes:
        return dict(writes_of(self.world))

    @cached_property
    def afterwards(self) -> tuple[Foretold, ...]:
        """The same after each of the earlier cases."""
        return tuple(
            Foretold(self.world.after(one.earlier), replace(self.like, found=one.found))
            for one in self.like.found["again"]
        )

    @cached_property
    def tables(self) -> tuple[Counts, ...]:
        """What each table would hold."""
        told: tuple[TableReads, ...] = self.world.predict("tables", self.like)
        return tuple(table.counts for table in told)

    @cached_property
    def table_ways(self) -> tuple[list[Counts], ...]:
        """All that each table might hold."""
        if self.world.masks_alone and any(table.closed for table in self.like.found["tables"]):
            return tuple([] for _ in self.like.found["tables"])
        return tuple(ways_to_name(table, self.world) for table in self.like.found["tables"])

    @cached_property
    def _origin(self) -> Slots:
        return origins(self.world)

    @cached_property
    def _columns(self) -> dict[int, list[int]]:
        return {reading.request: list(reading.slots) for reading in self.like.found["attend"].reads}

    def counts(self, i: int) -> tuple[Counts, Counts, bool]:
        """Least and most reads of each slot by real row i, and whether it reads what nobody holds."""
        if i not in self._counts:
            low, high = row_weights(self.world, i, self._origin)
            columns = self._columns[self.world.ground.rows[i].b]
            self._counts[i] = (*as_counts(low[columns], high[columns]), bool(high[-1] > 0))
        return self._counts[i]

    def numbers(self, i: int) -> tuple[Tensor, ...]:
        """Output and log-sum-exp of real row i, and the limits on both."""
        return outputs(self.world, [i], self.like.numerics, self.like.capabilities)


def alike(a: Foretold, b: Foretold, group: Group) -> bool:
    """Whether two statements would show the same of a group on their case, up to what is rounded."""
    if same_statement(a.world, b.world, group):
        return True
    if group == "attend":
        return _alike_launches(a, b)
    if group == "tables":
        return all(map(same_table, a.tables, b.table_ways))
    if group == "layers":
        return bool(a.world.predict(group, a.like) == b.world.predict(group, b.like))
    if group == "again":
        return all(
            all(alike(x, y, one) for one in told_by(again))
            for again, x, y in zip(a.like.found["again"], a.afterwards, b.afterwards, strict=True)
        )
    return fits(imagined(a.like, group, a.world), group, b.world)


def _alike_launches(a: Foretold, b: Foretold) -> bool:
    if a.writes != b.writes:
        return False
    rows = range(len(a.world.ground.rows))
    return all(_alike_counts(a, b, i) for i in rows) and all(_alike_numbers(a, b, i) for i in rows)


def _alike_counts(a: Foretold, b: Foretold, i: int) -> bool:
    (low, high, unowned), (other_low, other_high, other_unowned) = a.counts(i), b.counts(i)
    same = same_counts(high, other_high) and same_counts(low, other_low)
    return same and unowned == other_unowned


def _alike_numbers(a: Foretold, b: Foretold, i: int) -> bool:
    out, lse, limit, lse_limit = a.numbers(i)
    other, other_lse, other_limit, other_lse_limit = b.numbers(i)
    return near(out, other, limit + other_limit) and near(
        lse, other_lse, lse_limit + other_lse_limit
    )


def unseen(case: VerifyCase, like: Observation, groups: Sequence[Group]) -> Observation:
    """An observation to be imagined: about every slot, with the fields and tables that `like` has."""
    ground = Ground.of(case, like.leaves, like.model)
    every = tuple(range(case.layout.num_slots))
    found: dict[Group, Any] = {}
    for group in groups:
        if group == "attend":
            owned = tuple(sorted(ground.scene.ledger.owner))
            reads = tuple(
                KernelReads(b, owned, np.zeros((0, 0)), np.zeros((0, 0)))
                for b in range(len(case.requests))
            )
            found[group] = Attended(reads, frozenset(), None, None, None)
        elif group == "again":
            seen = tuple(dict.fromkeys(g for one in like.found[group] for g in one.found))
            both = replace(
                like, found={g: f for one in like.found[group] for g, f in one.found.items()}
            )
            found[group] = tuple(
                Again(earlier, unseen(case, both, seen).found, like.found[group][0].wrong)
                for ways in (larger(case), twin(case))
                for earlier in itertools.islice(ways, 1)
            )
        elif group == "tables":
            forms = dict.fromkeys(
                (table.form, table.window_free, table.closed) for table in like.found[group]
            )
            found[group] = tuple(
                TableReads(form, b, every, np.zeros((0, 0)), free, closed)
                for form, free, closed in forms
                for b in range(len(case.requests))
            )
        else:
            found[group] = like.found[group]
    return replace(like, case=case, found=found)
