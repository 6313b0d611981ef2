"""What a selection takes out of a draft pool, judged by itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import torch

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import DraftPool, Selected
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.malformed import ONE_IN, is_refusal
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.selecting import Pool, judge_selected, pools, without_order
from treeproof.properties.violation import Violation


def judge_selects(trial: Trial) -> None:
    """A call a pool; no other stage of the backend has a part in it."""
    if not (trial.has("select") and trial.wants("candidate", "declared")):
        return
    for probe, judge in (("declared", _judge), ("malformed", _judge_without_order)):
        if trial.runs(probe):
            with trial.probing(probe):
                try:
                    judge(trial)
                except Violation as violation:
                    trial.broke(violation)


def tried(trial: Trial) -> list[Pool]:
    """What the stage is tried on."""
    return pools(trial.case, mapped=trial.backend.capabilities.draft_vocabulary)


def selected(trial: Trial, given: Pool) -> Selected:
    """What the stage makes of one pool. Raises Violation."""
    pool = _on(given.pool, trial.options.device)
    handed = copied(pool)
    result = trial.call("select", trial.instance.select, handed, given.num_rows)
    trial.unchanged("select", pool, handed)
    return contract.valid_selected(result, len(given.requests), given.num_rows)


def _judge(trial: Trial) -> None:
    failures: list[Failure] = []
    for given in tried(trial):
        failures += judge_selected(given, selected(trial, given))
    if not trial.borrows("select"):
        trial.judged("candidate", "declared", "select", failures)


def _judge_without_order(trial: Trial) -> None:
    """Scores that are NaN are refused, or kept to the request that they are in."""
    if trial.borrows("select") or trial.broken:
        return
    if not trial.options.due(trial.case.seed, 0, ONE_IN):
        return
    failures: list[Failure] = []
    for given in without_order(trial.case):
        try:
            failures += judge_selected(given, selected(trial, given))
        except Violation as violation:
            if is_refusal(violation.__cause__):
                continue
            failure = violation.failure
            text = f"of two requests, where {given.what} in the first: {failure.message}"
            raise Violation(
                msgspec.structs.replace(failure, kind=f"malformed-{failure.kind}", message=text)
            ) from violation
    if failures:
        trial.judged("candidate", "declared", "select", failures)


def _on(pool: DraftPool, device: str) -> DraftPool:
    moved: dict[str, Any] = {
        f.name: value.to(device)
        for f in fields(pool)
        if isinstance(value := getattr(pool, f.name), torch.Tensor)
    }
    return replace(pool, **moved)
