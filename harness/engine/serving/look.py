"""Why a script fails: which one statement gives every answer of the pool or of the scheduler, explains
what is done in one of its rounds, or says that a stage goes by an earlier one."""

from __future__ import annotations

import time

import msgspec

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed, Shown
from treeproof.diagnosis import earlier_rounds
from treeproof.diagnosis.diagnose import UNKNOWN, Diagnosis
from treeproof.diagnosis.serving import (
    READS_SAMPLED,
    RUNS_AHEAD,
    STATEMENTS,
    Statement,
    causes,
    scheduling_causes,
)
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.check import serve
from treeproof.engine.serving.earlier_causes import earlier_cause
from treeproof.engine.serving.recorded import Recorded
from treeproof.engine.serving.round_causes import round_cause
from treeproof.properties.holdings import Holdings
from treeproof.properties.scene import Scene

_SERVING = frozenset({"pool", "schedule"})
"""Stages that are no part of a round."""


def look_script(
    case: VerifyCase, backend: Backend, options: CheckOptions
) -> tuple[tuple[Diagnosed, ...], Shown | None]:
    """The cause of what fails on this script, and its rounds, for pictures; nothing where nothing does."""
    start = time.perf_counter()
    recorded = Recorded()
    trial = Trial(backend, options, Scene.of(case, options.device), heard=recorded.hear)
    machine = serve(case, trial, recorded)
    if not trial.failures:
        return (), None
    found: list[Statement] = []
    if machine is not None:
        usable = Holdings(case.layout).usable
        if trial.has("pool"):
            found += causes(case.layout.page_size, usable, machine.paging.pool.calls)
        if trial.has("schedule"):
            found += scheduling_causes(machine.scheduling.scheduler.calls)
    of_rounds = None
    if not found and recorded.cases and trial.failures[0].stage not in _SERVING:
        failure = trial.failures[0]
        of_rounds = round_cause(recorded.cases, failure, case.seed, backend, options)
        if of_rounds is None or of_rounds.cause == UNKNOWN:
            earlier = earlier_cause(case, failure.stage, recorded.calls, backend, options)
            of_rounds = earlier or of_rounds
    picture = Shown(
        backend=backend.name,
        case=case.id,
        rounds=tuple(recorded.rounds),
        step=0 if machine is None else machine.taken,
    )
    cause = _diagnosed(found, of_rounds, case, backend)
    seconds = time.perf_counter() - start
    return (msgspec.structs.replace(cause, seconds=seconds),), picture


def _diagnosed(
    found: list[Statement], of_rounds: Diagnosis | None, case: VerifyCase, backend: Backend
) -> Diagnosed:
    every = (*STATEMENTS, READS_SAMPLED, RUNS_AHEAD)
    names = tuple(statement.name for statement in found)
    rest = tuple(statement.name for statement in every if statement.name not in names)
    if of_rounds is None:
        of_rounds = Diagnosis(UNKNOWN)
    if of_rounds.cause != earlier_rounds.NAME:
        rest = (*rest, earlier_rounds.NAME)
    return Diagnosed(
        backend=backend.name,
        identity="",
        kind="",
        case=case.id,
        cause=names[0] if names else of_rounds.cause,
        says=found[0].says if found else of_rounds.says,
        detail="" if found else of_rounds.detail,
        candidates=names or of_rounds.candidates,
        ruled_out=(*rest, *of_rounds.ruled_out),
        cases_tried=of_rounds.cases_tried,
    )
