"""What a statement would show on a case that has not been run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.evidence import (
    Again,
    Attended,
    Group,
    KernelReads,
    Observation,
    TableReads,
)
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.world import World
from treeproof.generate.related import larger, twin


def imagined(like: Observation, group: Group, world: World) -> Observation:
    """The evidence of one group if `world` were so."""
    return replace(like, found={**like.found, group: world.predict(group, like)})


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
