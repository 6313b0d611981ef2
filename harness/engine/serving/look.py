"""Why a script fails: which one statement gives every answer of the pool or of the scheduler."""

from __future__ import annotations

import time

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed, Shown
from treeproof.diagnosis.diagnose import UNKNOWN
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
from treeproof.engine.serving.recorded import Recorded
from treeproof.properties.holdings import Holdings
from treeproof.properties.scene import Scene


def look_script(
    case: VerifyCase, backend: Backend, options: CheckOptions
) -> tuple[tuple[Diagnosed, ...], Shown | None]:
    """The cause of what fails on this script, and its rounds, for pictures; nothing where nothing does."""
    start = time.perf_counter()
    trial = Trial(backend, options, Scene.of(case, options.device))
    recorded = Recorded()
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
    names = [statement.name for statement in found]
    every = (*STATEMENTS, READS_SAMPLED, RUNS_AHEAD)
    picture = Shown(
        backend=backend.name,
        case=case.id,
        rounds=tuple(recorded.rounds),
        step=0 if machine is None else machine.taken,
    )
    cause = Diagnosed(
        backend=backend.name,
        identity="",
        kind="",
        case=case.id,
        cause=names[0] if names else UNKNOWN,
        says=found[0].says if found else "",
        candidates=tuple(names),
        ruled_out=tuple(s.name for s in every if s.name not in names),
        cases_tried=1,
        seconds=time.perf_counter() - start,
    )
    return (cause,), picture
