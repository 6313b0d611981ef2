"""What sampled acceptance emitted, and what row processing gave."""

from __future__ import annotations

from typing import Any

from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import TARGET_ONLY
from treeproof.diagnosis.evidence import Group, Walk
from treeproof.engine.checks.requests import processed
from treeproof.engine.checks.samples import sampled, sibling_order
from treeproof.engine.checks.trial import Trial
from treeproof.engine.observing.rounds import local, trimmed


def observe_sample(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    can = trial.backend.capabilities
    if not trial.has("sample") or TARGET_ONLY not in can.sampling or can.own_coins:
        return
    if sibling_order(trial, x) is not None:
        return  # causes are stated of siblings by ascending rows
    lines = []
    for launch, done in sampled(trial, x, TARGET_ONLY):
        results = (done.accept_index, done.accept_len, done.tokens)
        walks = zip(*(result.tolist() for result in results), strict=True)
        lines.append(
            tuple(
                Walk(local(index, launch.case.qo_indptr[b]), length, trimmed(tokens))
                for b, (index, length, tokens) in enumerate(walks)
            )
        )
    if not trial.borrows("sample"):
        found["sample"] = tuple(lines)


def observe_process(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("process"):
        return
    launch = trial.prepared.processed
    logits = processed(trial, x).tolist()
    if not trial.borrows("process"):
        first = launch.case.qo_indptr
        found["process"] = tuple(
            (b, row, tuple(logits[first[b] + row])) for b, row, _ in launch.expected
        )
