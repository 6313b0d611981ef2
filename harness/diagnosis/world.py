"""One complete statement of what every stage does on a case, and the evidence it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from treeproof.contract.case import VerifyCase
from treeproof.contract.target_model import TargetModel
from treeproof.diagnosis.adjusting import RIGHT as RIGHT_ADJUSTING
from treeproof.diagnosis.adjusting import Adjusting, adjusted
from treeproof.diagnosis.chosen import Select, select_all, the_best
from treeproof.diagnosis.drawing import RIGHT as RIGHT_DRAWING
from treeproof.diagnosis.drawing import Drawing, drawn
from treeproof.diagnosis.engine import Columns, EngineRun, Inside
from treeproof.diagnosis.evidence import (
    Attended,
    Commit,
    Counts,
    Group,
    Observation,
    TableReads,
    Walk,
)
from treeproof.diagnosis.ground import Ground, Seen
from treeproof.diagnosis.laid_out import Draft, as_allotted, ways_of
from treeproof.diagnosis.law import SOFTMAX, Law
from treeproof.diagnosis.layered import RIGHT as RIGHT_LAYERED
from treeproof.diagnosis.layered import Layered, told
from treeproof.diagnosis.merging import Merge, merged, softmerge
from treeproof.diagnosis.renewed import Extend, as_accepted
from treeproof.diagnosis.rerun import attended
from treeproof.diagnosis.scope import EVERYWHERE, Scope

Table: TypeAlias = tuple[tuple[int, ...], ...]
Walks: TypeAlias = tuple[tuple[Walk, ...], ...]
Contract: TypeAlias = frozenset[tuple[str, str, str]]


Again: TypeAlias = "Callable[[World, VerifyCase], World] | None"


@dataclass(frozen=True)
class World:
    """The truth, or a hypothesis: the truth with one statement replaced.

    `uncut` are the keys of each real row before a window cuts, `seen` after it. `heads`: query heads
    that read `seen`, all where None; the others read `others`. `scope`: where `law` holds. `written`:
    slot to the flat rows whose K and V it holds when rows are read. `left`: the same after the launch,
    where that is not the same.
    """

    ground: Ground
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    links: Mapping[str, Table]
    uncut: Seen
    seen: Seen
    written: Mapping[int, tuple[int, int]]
    walks: Walks
    commits: tuple[Commit, ...]
    law: Law = SOFTMAX
    scope: Scope = EVERYWHERE
    heads: frozenset[int] | None = None
    others: Seen = ()
    contract: Contract = frozenset()
    beside: Contract = frozenset()
    """Contracts that may be broken as well where what is stated shows; never alone."""
    merge: Merge = softmerge
    select: Select = the_best
    drawing: Drawing = RIGHT_DRAWING
    adjusting: Adjusting = RIGHT_ADJUSTING
    layered: Layered = RIGHT_LAYERED
    draft: Draft = as_allotted
    extend: Extend = as_accepted
    masks_alone: bool = False
    """What is stated is so of masks; a list that says the same has another cause."""
    left: Mapping[int, tuple[int, int]] | None = None
    rival: bool = False
    """What a hypothesis states on a condition, stated without it: as long as that explains all that
    was seen, the hypothesis is not named."""
    again: Again = None
    """What is so after another case on the same object; None: what is so on a fresh one."""
    inside: Inside | None = None
    """Parts of an engine that read other keys than `seen`."""
    looked_up: Columns | None = None
    """By which tokens an engine finds a prefix that it has kept; None: by all."""

    def predict(self, group: Group, like: Observation) -> Any:
        """The evidence of one group, about the same keys as `like` has."""
        if group == "attend":
            return self.predict_attend(like.found[group], like)
        if group == "tables":
            return tuple(self._table(table) for table in like.found[group])
        if group == "again":
            return tuple(
                replace(one, found=self.after(one.earlier).predict_all(one.found, like))
                for one in like.found[group]
            )
        if group == "layers":
            return told(self.layered, self.ground, like.found[group].layers)
        if group == "merge":
            return merged(self.merge, like)
        if group == "sample":
            return drawn(self.ground.case, self.drawing)
        if group == "process":
            return adjusted(self.ground.case, self.adjusting)
        if group == "draft":
            return self.draft(ways_of(self.ground.case)).as_far_as(like.found[group])
        if group == "extend":
            names = like.found[group][0] if like.found[group] else ()
            rounds = self.extend(self.ground)
            return tuple({name: made[name] for name in names} for made in rounds)
        if group == "select":
            return select_all(self.select, self.ground.case, like.capabilities)
        if group == "links":
            return {name: self.links[name] for name in like.found[group]}
        if group == "accept":
            return self.walks
        if group == "commit":
            return self.commits
        if group == "forward":
            return self.engine
        if group == "contract":
            return self.contract | self.beside
        return getattr(self, group)

    def predict_all(self, about: Mapping[Group, Any], like: Observation) -> dict[Group, Any]:
        """Every group of `about`."""
        these = replace(like, found=about)
        return {group: self.predict(group, these) for group in about}

    def predict_attend(self, about: Attended, like: Observation) -> Attended:
        return attended(self, about.reads, like.numerics, like.capabilities)

    @cached_property
    def engine(self) -> EngineRun:
        """What a whole engine shows, run once however often it is compared."""
        return EngineRun(self)

    def after(self, earlier: VerifyCase) -> World:
        """What is so on an object that had another case before."""
        return self if self.again is None else self.again(self, earlier)

    def _table(self, table: TableReads) -> TableReads:
        seen = self.uncut if table.window_free else self.seen
        counts = self.table_counts(replace(table, closed=False), seen)
        assert counts is not None  # only closed tables have to name all that is read
        return replace(table, counts=counts)

    def table_counts(self, table: TableReads, seen: Seen) -> Counts | None:
        """(real rows of the request, slots) how often each is read; None where a list would have to
        name a slot that it does not."""
        place = {slot: j for j, slot in enumerate(table.slots)}
        rows = [i for i, row in enumerate(self.ground.rows) if row.b == table.request]
        counts = np.zeros((len(rows), len(table.slots)))
        for line, i in enumerate(rows):
            for key in seen[i]:
                if key.k in place:
                    counts[line, place[key.k]] += 1
                elif table.closed:
                    return None
        return counts


_FIELDS: Mapping[Group, tuple[str, ...]] = {
    "attend": ("seen", "written", "left", "law", "scope", "heads"),
    "tables": ("uncut", "seen"),
    "accept": ("walks",),
    "sample": ("drawing",),
    "process": ("adjusting",),
    "layers": ("layered",),
    "forward": ("seen", "positions", "inside", "looked_up"),
    "contract": ("contract", "beside"),
    "again": (
        *("tokens", "positions", "slots", "links", "uncut", "seen", "written", "left", "law"),
        *("scope", "heads", "walks", "contract", "again"),
    ),
}


def same_statement(a: World, b: World, group: Group) -> bool:
    """Whether two worlds say the same of a group, seen from what they state and not from evidence."""
    if group == "commit":  # arrays do not compare as one
        return a.commits is b.commits
    fields = _FIELDS.get(group, (group,))
    return all(getattr(a, name) == getattr(b, name) for name in fields)


def truth(ground: Ground) -> World:
    """What a right backend does."""
    return _truth(ground.case, ground.leaves, ground.model)


def right_of(seen: Observation, case: VerifyCase | None = None) -> World:
    """The truth on what was seen, or of the same backend on another case."""
    return truth(Ground.of(case or seen.case, seen.leaves, seen.model))


@lru_cache(maxsize=64)
def _truth(case: Any, leaves: int | None, model: TargetModel | None) -> World:
    ground = Ground.of(case, leaves, model)
    real = [(request, node) for request in ground.requests for node in request.node_of_row]
    uncut = tuple(ground.reads(row) for row in ground.rows)
    return World(
        ground=ground,
        tokens=tuple(request.tree.tokens[node] for request, node in real),
        positions=tuple(ground.scene.true_positions.tolist()),
        slots=tuple(ground.scene.row_slot.tolist()),
        lengths=tuple(request.prefix_len for request in ground.requests),
        links=_links(ground),
        uncut=uncut,
        seen=tuple(
            ground.cut(keys, row.position) for keys, row in zip(uncut, ground.rows, strict=True)
        ),
        written={
            slot: (flat, flat)
            for flat, slot in enumerate(ground.scene.row_slot.tolist())
            if slot >= 0
        },
        walks=_walks(ground),
        commits=_commits(ground),
    )


def _links(ground: Ground) -> dict[str, Table]:
    """The four (B, Nmax) tables: siblings in ascending row order, -1 where there is none."""
    width = max(request.num_rows for request in ground.requests)
    names = ("index", "next_token", "next_sibling", "parent_token")
    tables: dict[str, list[tuple[int, ...]]] = {f"retrieve_{name}": [] for name in names}
    for b, request in enumerate(ground.requests):
        up = request.parent_rows
        broods = [[r for r, parent in enumerate(up) if parent == row] for row in range(len(up))]
        after = {a: z for brood in broods for a, z in pairwise(brood)}
        first = ground.case.qo_indptr[b]
        lines = (
            [first + row for row in range(len(up))],
            [brood[0] if brood else -1 for brood in broods],
            [after.get(row, -1) for row in range(len(up))],
            list(up),
        )
        for table, line in zip(tables.values(), lines, strict=True):
            table.append((*line, *[-1] * (width - len(line))))
    return {name: tuple(table) for name, table in tables.items()}


def _walks(ground: Ground) -> Walks:
    return tuple(
        tuple(
            Walk(rows, len(rows), emitted)
            for rows, emitted in zip(prediction.rows, prediction.emitted, strict=True)
        )
        for prediction in ground.rounds
    )


def _commits(ground: Ground) -> tuple[Commit, ...]:
    found = []
    for move in ground.moves:
        content = move.content.numpy()
        rows, emitted = move.prediction.rows, move.prediction.emitted
        boundary = tuple(
            request.prefix_len + len(path)
            for request, path in zip(ground.requests, rows, strict=True)
        )
        found.append(Commit(content, content, boundary, tuple(e[-1] for e in emitted)))
    return tuple(found)
