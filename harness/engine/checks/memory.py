"""Memory that a backend keeps of each step: what is called a million times a day must give it back."""

from __future__ import annotations

from treeproof.engine.checks.stale import one_round
from treeproof.engine.checks.trial import Trial
from treeproof.engine.watchdog import work_of
from treeproof.properties.probes.memory import leak
from treeproof.properties.violation import Violation, contract_failure

_ONE_IN = 8
"""Cases that have time for it: sixteen steps where nothing grows, hundreds where something does."""
_MOST_WORK = 1e7
"""Multiply-adds of their attention: what is kept of a step is kept of a small one."""

_STAGES = ("build", "attend", "accept", "commit")
"""Those of a step."""


def judge_memory(trial: Trial) -> None:
    """The same step again and again on one object, of a backend that is right on the case so far."""
    stages = [stage for stage in _STAGES if trial.has(stage)]
    small = trial.options.complete or work_of(trial.case) <= _MOST_WORK
    due = small and trial.options.due(trial.case.seed, 3, _ONE_IN)
    wanted = trial.runs("memory") and trial.wants("contract", "measured")
    if not (stages and due and wanted) or trial.failures:
        return
    scene, made = trial.scene, trial.prepared.candidates
    with trial.probing("memory"), trial.timed("probe"):
        try:
            instance = trial.call("plan", trial.backend.make)
            found = leak(lambda: one_round(trial, instance, scene, made), scene.device)
        except Violation as violation:
            trial.broke(violation)
            return
    if found is None:
        return
    steps = f"{found.calls} steps of {', '.join(stages)} on the same case"
    message = f"{found.name} grows by {found.bytes_a_call:,.0f} bytes with each of {steps}"
    with trial.probing("memory"):
        trial.note(contract_failure("leaks-memory", "all", message))
