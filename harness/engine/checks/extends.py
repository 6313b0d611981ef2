"""What the drafter is run on after a round, judged by itself."""

from __future__ import annotations

from collections.abc import Iterator

from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties.extending import (
    Found,
    hidden_states,
    judge_extended,
    recover_extended,
    valid_extended,
)
from treeproof.properties.violation import Violation


def judge_extends(trial: Trial, x: VerifyInput) -> None:
    """One call a round."""
    if not (trial.has("extend") and trial.runs("draft")):
        return
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    with trial.probing("draft"):
        try:
            rounds = list(extended(trial, seen))
        except Violation as violation:
            trial.broke(violation)
            return
        if trial.borrows("extend"):
            return
        found: dict[tuple[Identity, Evidence], list[Failure]] = {}
        for prediction, made in zip(trial.prepared.rounds, rounds, strict=True):
            for identity, evidence, failures in judge_extended(trial.scene, prediction, made):
                found.setdefault((identity, evidence), []).extend(failures)
        for (identity, evidence), failures in found.items():
            if trial.wants(identity, evidence):
                trial.judged(identity, evidence, "extend", failures)


def extended(trial: Trial, seen: VerifyInput) -> Iterator[Found]:
    """What each round's call made, out of the right result of its accept. Raises Violation."""
    hidden = hidden_states(trial.scene)
    for prediction, accepted in zip(trial.prepared.rounds, trial.prepared.accepted, strict=True):
        given = copied(seen), copied(accepted), hidden.clone()
        result = trial.call("extend", trial.instance.extend, *given)
        for before, after in zip((seen, accepted, hidden), given, strict=True):
            trial.unchanged("extend", before, after)
        width = trial.prepared.candidates.spec_steps
        done = valid_extended(result, trial.scene, width, hidden)
        yield recover_extended(done, trial.scene, prediction)
