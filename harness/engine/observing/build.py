"""The fields and tables that a build made."""

from __future__ import annotations

import itertools
from typing import Any

from treeproof.backends import reference
from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import Group, TableReads
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.stages import build
from treeproof.engine.checks.trial import Trial
from treeproof.engine.mend import mended
from treeproof.properties.declared import Declaration, declarations
from treeproof.properties.violation import Violation, contract_failure
from treeproof.properties.visibility import Reading

_LINKS = (
    "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token",
)  # fmt: skip


def observe_build(trial: Trial, found: dict[Group, Any]) -> VerifyInput:
    """The backend's own fields as evidence, and the input with right ones in their place."""
    made = trial.prepared.candidates
    built = build(trial, trial.instance, trial.scene, made)
    if not built.produced:
        return built.x
    trial.produced = dict(built.produced)
    _fields(trial, found)
    read = trial.backend.consumes if trial.has("attend") else frozenset(built.produced)
    tables = {name: table for name, table in built.produced.items() if name in read}
    declared = _tables(trial, tables, built.x.mask_mode, "build")
    if declared:
        found["tables"] = tuple(declared)
    return mended(trial.scene, built.x, reference.build(copied(made)), built.produced)


def _fields(trial: Trial, found: dict[Group, Any]) -> None:
    produced, scene = trial.produced, trial.scene
    if "draft_token" in produced:
        tokens = produced["draft_token"].tolist()
        found["tokens"] = tuple(tokens[flat] for flat in scene.real)
    if "positions" in produced:
        found["positions"] = tuple(produced["positions"].tolist())
    if "out_cache_loc" in produced:
        free = {-1, scene.case.layout.pad_slot}
        found["slots"] = tuple(
            -1 if padded and slot in free else slot
            for slot, padded in zip(
                produced["out_cache_loc"].tolist(), scene.padding.tolist(), strict=True
            )
        )
    if "seq_lens" in produced:
        found["lengths"] = tuple(produced["seq_lens"].tolist())
    links = {
        name: tuple(map(tuple, produced[name].tolist())) for name in _LINKS if name in produced
    }
    if links:
        found["links"] = links


def _tables(trial: Trial, tables: Any, mode: MaskMode | None, stage: str) -> list[TableReads]:
    """Masks and lists; links are evidence of their own."""
    try:
        declared = declarations(trial.scene, tables, mode or trial.case.mask.mode)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        message = f"tables of {stage} cannot be decoded: {type(error).__name__}: {error}"
        trial.broke(Violation(contract_failure("malformed-table", stage, message)))
        return []
    return [
        _table(trial.case, declaration, reading, stage)
        for declaration in declared
        if declaration.form not in ("links", "parent pointers")
        for reading in declaration.readings
    ]


def _table(case: VerifyCase, declaration: Declaration, reading: Reading, stage: str) -> TableReads:
    """Without the columns whose pages were given back: no slot is theirs, and a mask that the kernel
    has yet to cut says nothing by them."""
    gone = case.evicted_columns(reading.request)
    kept = [j for j, column in enumerate(reading.columns) if not 0 <= column < gone]
    return TableReads(
        f"{stage}: {declaration.form}",
        reading.request,
        _told_apart(tuple(reading.slots[j] for j in kept)),
        reading.low[:, kept],
        declaration.window_free,
        closed=declaration.form != "mask",
    )


def _told_apart(slots: tuple[int, ...]) -> tuple[int, ...]:
    """-1, -2 and so on for columns that have no slot: those of padded rows."""
    gone = itertools.count(1)
    return tuple(-next(gone) if slot == -1 else slot for slot in slots)
