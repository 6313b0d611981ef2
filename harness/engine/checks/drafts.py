"""What a drafting phase lays out, judged by itself: positions, slots, tables, and copies in the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.drafting import DraftStep
from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.generate.drafting import DraftScene, draft_scene
from treeproof.properties.drafted import Table, made_fields, tables_of, valid_drafted
from treeproof.properties.drafting import (
    Copy,
    Grid,
    Ownership,
    judge_contents,
    judge_positions,
    judge_reads,
    judge_slots,
)
from treeproof.properties.kv import judge_strayed
from treeproof.properties.probes.storage import Caches
from treeproof.properties.violation import Violation, contract_failure


def judge_drafts(trial: Trial) -> None:
    """One call of the stage; no other stage of the backend has a part in it."""
    if not (trial.has("draft") and trial.runs("draft")):
        return
    with trial.probing("draft"):
        try:
            laid = lay_out(trial)
            if trial.borrows("draft"):
                return
            for identity, evidence, failures in laid.verdicts():
                if failures is None:
                    trial.not_checked(identity, evidence, "draft", "no page tail to copy")
                elif trial.wants(identity, evidence):
                    trial.judged(identity, evidence, "draft", failures)
        except Violation as violation:
            trial.broke(violation)


@dataclass(frozen=True, eq=False)
class LaidOut:
    """What one call of the stage made, and what the caches hold by slot after it. `strayed`: slots at
    which it wrote the memory of other layers."""

    scene: DraftScene
    given: DraftStep
    made: Mapping[str, Tensor]
    tables: tuple[Table, ...]
    after: tuple[Tensor, Tensor]
    strayed: tuple[int, ...] = ()

    def verdicts(self) -> Iterator[tuple[Identity, Evidence, list[Failure] | None]]:
        """Failures by identity and evidence; None where there was nothing to see."""
        own, copies = Ownership(self.scene), dict[Copy, None]()
        if "positions" in self.made:
            positions = self.made["positions"].cpu().numpy()
            yield "position", "declared", judge_positions(self.scene, positions)
        if "out_cache_loc" in self.made:
            yield "kv", "declared", judge_slots(own, self.slots)
        failures: list[Failure] = []
        for table in self.tables:
            wrong, named = judge_reads(own, self.slots, table)
            failures += wrong
            copies |= dict.fromkeys(named)
        if self.tables:
            yield "visibility", "declared", failures
        wrong, seen = judge_contents(own, list(copies), *self.after)
        wrong += judge_strayed(self.strayed, "draft")
        yield "kv", "measured", wrong if seen or wrong else None

    @cached_property
    def slots(self) -> Grid:
        """The stage's own slots; where it hands out none, those of the reference."""
        slots = self.made.get("out_cache_loc")
        if slots is None:
            k, v = (part.clone() for part in self.scene.before)
            slots = reference.draft(replace(self.given, k_cache=k, v_cache=v)).out_cache_loc
        assert slots is not None
        return slots.cpu().numpy().astype(np.int64)


def lay_out(trial: Trial) -> LaidOut:
    """Call the stage. Raises Violation where what it gives has not the form of a layout."""
    scene = draft_scene(trial.case, trial.options.device)
    beside = (part.flip(0) for part in scene.before)
    caches = Caches.laid(scene.layout, *(part.clone() for part in scene.before), *beside)
    given = scene.step(caches.k, caches.v)
    made, tables = made_by(trial, scene, given)
    return LaidOut(scene, given, made, tables, caches.by_slot(), caches.strayed())


def made_by(
    trial: Trial, scene: DraftScene, given: DraftStep
) -> tuple[Mapping[str, Tensor], tuple[Table, ...]]:
    """What the stage makes, and every form of table in it. It is handed the caches themselves, and
    copies of all that is to be read. Raises Violation."""
    handed = replace(copied(given), k_cache=given.k_cache, v_cache=given.v_cache)
    drafted = valid_drafted(trial.call("draft", trial.instance.draft, handed), scene)
    trial.unchanged("draft", given, handed)
    made = made_fields(drafted)
    try:
        return made, tuple(tables_of(made, scene.layout.page_size))
    except ValueError as error:
        text = f"tables of draft cannot be decoded: {error}"
        raise Violation(contract_failure("malformed-table", "draft", text)) from error
