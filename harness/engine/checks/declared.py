"""What a backend's own build declares: tokens, positions, slots, links and tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.case import MaskMode
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.trial import Trial
from treeproof.properties import candidate, kv, position, traversal
from treeproof.properties.declared import Declaration, closures, declarations
from treeproof.properties.scene import Scene
from treeproof.properties.sibling_order import judge_siblings, recover_siblings
from treeproof.properties.tables import recover_parents
from treeproof.properties.violation import Violation, contract_failure
from treeproof.properties.visibility import judge

_CHAIN = ("retrieve_next_token", "retrieve_next_sibling")


def judge_declared(trial: Trial, x: VerifyInput) -> None:
    """Judge each field of the backend's own making; fields of the reference are no evidence."""
    if not trial.runs("declared"):
        return
    with trial.probing("declared"):
        with trial.timed("check"):
            _tokens(trial, x)
            _positions(trial, x)
            _slots(trial, x)
            _links(trial, x)
        if trial.wants("visibility", "declared"):
            _tables(trial, _own_tables(trial), x.mask_mode, "build")


def _tokens(trial: Trial, x: VerifyInput) -> None:
    if "draft_token" in trial.produced and trial.wants("candidate", "declared"):
        tokens = candidate.recover_tokens(x.draft_token.tolist(), trial.case.qo_indptr)
        trial.recover("candidate", "declared", "tokens", tokens)
        failures = candidate.judge(trial.case, tokens, "declared", "build")
        trial.judged("candidate", "declared", "build", failures)


def _positions(trial: Trial, x: VerifyInput) -> None:
    if "positions" in trial.produced and trial.wants("position", "declared"):
        prefixes = [r.prefix_len for r in trial.case.requests]
        depths = position.recover_depths(x.positions.tolist(), trial.case.qo_indptr, prefixes)
        trial.recover("position", "declared", "depths", depths)
        failures = position.judge_declared(trial.case, depths)
        trial.judged("position", "declared", "build", failures)


def _slots(trial: Trial, x: VerifyInput) -> None:
    if "out_cache_loc" in trial.produced and trial.wants("kv", "declared"):
        named = x.out_cache_loc.tolist()
        trial.recover("kv", "declared", "rows", partial(_rows, trial.scene, named))
        failures = kv.judge_out_cache_loc(trial.scene, named, "build")
        trial.judged("kv", "declared", "build", failures)


def _rows(scene: Scene, named: list[int]) -> kv.Rows:
    """Rows of their own request; a row of another request stays undetermined."""
    slots = [scene.ledger.row_slots(b) for b in range(len(scene.case.requests))]
    local = []
    for b, found in enumerate(kv.recover_slots(named, slots)):
        start, end = scene.case.qo_indptr[b], scene.case.qo_indptr[b + 1]
        local.append(tuple(None if r is None or not start <= r < end else r - start for r in found))
    return tuple(local)


def _links(trial: Trial, x: VerifyInput) -> None:
    made = set(_CHAIN) <= set(trial.produced)
    if not made or not trial.wants("traversal", "declared"):
        return
    rows = [r.num_nodes for r in trial.case.requests]
    down, right = (trial.produced[name].tolist() for name in _CHAIN)
    parents = traversal.recover_links(down, right, rows)
    trial.recover("traversal", "declared", "parents", parents)
    failures = traversal.judge_parents(trial.case, parents, "build")
    siblings = recover_siblings(trial.case, down, right)
    if siblings is not None:
        declared = trial.backend.capabilities.sibling_order
        failures += judge_siblings(trial.case, siblings, declared)
    for name, table in zip(_CHAIN, (down, right), strict=True):
        failures += traversal.judge_link_cells(trial.case, name, table, "build")
    if "retrieve_parent_token" in trial.produced:
        table = trial.produced["retrieve_parent_token"].tolist()
        failures += traversal.judge_parent_table(trial.case, table, "build")
    if "retrieve_index" in trial.produced:
        index = trial.produced["retrieve_index"].tolist()
        failures += traversal.judge_retrieve_index(trial.case, index, "build")
    trial.judged("traversal", "declared", "build", failures)


def _own_tables(trial: Trial) -> dict[str, Any]:
    """Tables of the backend's own making that its attend reads."""
    read = trial.backend.consumes if trial.has("attend") else frozenset(trial.produced)
    return {name: table for name, table in trial.produced.items() if name in read}


def judge_launched(trial: Trial, x: VerifyInput, declared: Mapping[str, Any]) -> None:
    """Judge the tables that attend says it launched, where they are not ours handed back."""
    if not (trial.runs("declared") and trial.wants("visibility", "declared")):
        return
    launched = {
        name: table
        for name, table in declared.items()
        if name in trial.produced or not _same(table, getattr(x, name))
    }
    judged = _own_tables(trial)
    if any(not _same(table, judged.get(name)) for name, table in launched.items()):
        with trial.probing("declared"):
            _tables(trial, launched, x.mask_mode, "attend")


def _same(a: Any, b: Any) -> bool:
    """Equal numbers: a table of ours does not become the backend's own by another integer type."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.is_floating_point():
        return False
    return torch.equal(a.long(), b.long())


def _tables(trial: Trial, tables: Mapping[str, Any], mode: MaskMode | None, stage: str) -> None:
    with trial.timed("check"):
        try:
            found = declarations(trial.scene, tables, mode or trial.case.mask.mode)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            text = f"tables of {stage} cannot be decoded: {type(error).__name__}: {error}"
            trial.broke(Violation(contract_failure("malformed-table", stage, text)))
            return
        if not found:
            return
        failures: list[Failure] = []
        for declaration in found:
            parents = partial(_parents, declaration, trial.scene)
            source = f"{stage}: {declaration.form}"
            trial.recover("visibility", "declared", "parents", parents, source)
            for reading in declaration.readings:
                failures += judge(
                    trial.case,
                    trial.scene.ledger,
                    reading,
                    "declared",
                    window_free=declaration.window_free,
                    stage=stage,
                )
        trial.judged("visibility", "declared", stage, failures)


def _parents(declaration: Declaration, scene: Scene) -> tuple[tuple[int | None, ...], ...]:
    return tuple(recover_parents(closure) for closure in closures(declaration, scene))
