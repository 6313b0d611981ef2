"""What a check would say of another object or case, without saying it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treeproof.contract.failure import Failure
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.prepared import Prepared
from treeproof.engine.checks.rounds import judge_rounds
from treeproof.engine.checks.stages import Built
from treeproof.engine.checks.trial import Trial


def scratch(trial: Trial, prepared: Prepared, instance: Any, built: Built) -> Trial:
    """A trial that starts anew, with every probe on; only the time it takes, and
    what has been seen to run here, are `trial`'s."""
    every = replace(trial.options, probes=trial.options.probes | {"declared", "walk", "commit"})
    return Trial(
        trial.backend,
        every,
        prepared,
        instance,
        dict(built.produced),
        returned=trial.returned,
        seconds=trial.seconds,
    )


def known_keys(trial: Trial, prepared: Prepared, built: Built) -> set[tuple[str, str]]:
    """Keys of what is wrong with the case itself, whether its own probe is switched on or not."""
    alone = scratch(trial, prepared, trial.instance, built)
    if not trial.runs("declared"):
        judge_declared(alone, built.x)
    if prepared.rounds and not (trial.runs("walk") and trial.runs("commit")):
        judge_rounds(alone, built.x)
    return {f.key for f in (*trial.failures, *alone.failures)}


def new_failures(alone: Trial, known: set[tuple[str, str]]) -> list[Failure]:
    """What a scratch trial found that is not known; it forgets all it found."""
    found = [f for f in alone.failures if f.key not in known]
    alone.failures.clear()
    return found
