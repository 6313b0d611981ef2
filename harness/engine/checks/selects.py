"""What a selection takes out of a draft pool, judged by itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import DraftPool
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.selecting import judge_selected, pools
from treeproof.properties.violation import Violation


def judge_selects(trial: Trial) -> None:
    """A call a pool; no other stage of the backend has a part in it."""
    wanted = trial.runs("declared") and trial.wants("candidate", "declared")
    if not (trial.has("select") and wanted):
        return
    with trial.probing("declared"):
        try:
            _judge(trial)
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial) -> None:
    failures: list[Failure] = []
    for given in pools(trial.case):
        pool = _on(given.pool, trial.options.device)
        handed = copied(pool)
        result = trial.call("select", trial.instance.select, handed, given.num_rows)
        trial.unchanged("select", pool, handed)
        failures += judge_selected(given, contract.valid_selected(result, given.num_rows))
    if not trial.borrows("select"):
        trial.judged("candidate", "declared", "select", failures)


def _on(pool: DraftPool, device: str) -> DraftPool:
    moved: dict[str, Any] = {
        f.name: value.to(device)
        for f in fields(pool)
        if isinstance(value := getattr(pool, f.name), torch.Tensor)
    }
    return replace(pool, **moved)
