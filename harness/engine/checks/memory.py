"""Memory that a backend keeps of each step: what is called a million times a day must give it back."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from treeproof.backends.reference import Reference
from treeproof.backends.reference.store import store_kv
from treeproof.contract.backend import describe
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.engine.checks.stale import one_round
from treeproof.engine.checks.trial import Trial
from treeproof.engine.watchdog import work_of
from treeproof.properties.probes.memory import leak, meters
from treeproof.properties.violation import Violation, contract_failure

_ONE_IN = 8
"""Cases that have time for it: sixteen steps where nothing grows, hundreds where something does."""
_MOST_WORK = 1e7
"""Multiply-adds of their attention: what is kept of a step is kept of a small one."""

_GROWING: set[str] = set()
"""Kinds of memory that grow in this process whatever it does, as was seen once: what a driver or a profiler
keeps of every launch is no backend's."""

_STAGES = ("build", "attend", "accept", "commit")
"""Those of a step."""


class _NoBackend(Reference):
    """What treeproof itself does for a step, whose attention is zeros."""

    def attend(self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Attended:
        store_kv(x, k, v, *caches)
        return Attended(out=q.new_zeros(*q.shape[:2], v.shape[2]))


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
            step = partial(one_round, trial, instance, scene, made)
            found = leak(step, scene.device, _GROWING)
            # A kind of memory that grows by itself hides what else does: the next one is asked.
            while found is not None and _grows_without(trial, found.name):
                found = leak(step, scene.device, _GROWING)
        except Violation as violation:
            trial.broke(violation)
            return
    if _GROWING:
        names = " and ".join(sorted(_GROWING))
        reason = (
            f"whether it keeps {names} was not seen: in this process that grows without it as well"
        )
        trial.not_checked("contract", "measured", "all", reason)
    if found is None:
        return
    steps = f"{found.calls} steps of {', '.join(stages)} on the same case"
    message = f"{found.name} grows by {found.bytes_a_call:,.0f} bytes with each of {steps}"
    with trial.probing("memory"):
        trial.note(contract_failure("leaks-memory", "all", message))


def _grows_without(trial: Trial, name: str) -> bool:
    """Whether the memory of this name grows with each step that has nothing of the backend."""
    other = Trial(describe(_NoBackend, "none"), trial.options, trial.prepared)
    step = partial(one_round, other, _NoBackend(), trial.scene, trial.prepared.candidates)
    device = trial.scene.device
    found = leak(step, device, [meter.name for meter in meters(device) if meter.name != name])
    if found is not None:
        _GROWING.add(name)
    return found is not None
