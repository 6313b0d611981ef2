"""What was selected out of each pool."""

from __future__ import annotations

from typing import Any

from treeproof.contract.inputs import Selected
from treeproof.diagnosis.chosen import Chosen, select_all, the_best
from treeproof.diagnosis.evidence import Group
from treeproof.engine.checks.selects import selected, tried
from treeproof.engine.checks.trial import Trial
from treeproof.properties.selecting import Pool, judge_selected


def observe_select(trial: Trial, found: dict[Group, Any]) -> None:
    """As it is where anything is wrong with it; of equal candidates a right one may take others."""
    if not trial.has("select"):
        return
    done = [(given, selected(trial, given)) for given in tried(trial)]
    if trial.borrows("select"):
        return
    if any(judge_selected(given, got) for given, got in done):
        found["select"] = tuple(_chosen(given, got) for given, got in done)
    else:
        found["select"] = select_all(the_best, trial.case, trial.backend.capabilities)


def _chosen(given: Pool, got: Selected) -> Chosen:
    topk = given.pool.topk
    index = tuple(map(tuple, got.selected_index.tolist()))
    parents = tuple(
        tuple(held[s // topk] if topk <= s < topk * len(held) else -1 for s in line)
        for line, held in zip(index, got.parent_list.tolist(), strict=True)
    )
    return Chosen(index, tuple(map(tuple, got.draft_token.tolist())), parents)
