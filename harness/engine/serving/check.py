"""A case with a script on one backend: the rounds are run, and what came of them is a verdict."""

from __future__ import annotations

from treeproof.contract.backend import STAGES
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Generated
from treeproof.contract.failure import Cell, Identity
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import Wrong
from treeproof.engine.serving.machine import Machine
from treeproof.engine.serving.recorded import Recorded
from treeproof.properties.violation import Violation

DRIVEN = frozenset(STAGES) - {"merge", "forward"}
"""Stages that rounds drive. The reference serves what a backend lacks of them, but for the layout of
drafts and for what the drafter is run on: nothing else depends on those."""

_MEASURED: tuple[tuple[Identity, str], ...] = (
    ("traversal", "accept"),
    ("kv", "attend"),
    ("kv", "commit"),
    ("kv", "pool"),
    ("candidate", "schedule"),
    ("output", "attend"),
)
"""What rounds measure as they go on, and the stage that each is evidence of."""

_LENT: tuple[tuple[Identity, str], ...] = (
    ("traversal", "accept"),
    ("traversal", "sample"),
    ("traversal", "finish"),
    ("kv", "commit"),
    ("output", "attend"),
    ("output", "process"),
)
"""What is said of a stage that the reference serves, where the backend shows nothing else of that."""

NOTHING_RAN = "no round of the script could be run"


def serve(case: VerifyCase, trial: Trial, recorded: Recorded | None = None) -> Machine | None:
    """Run the script. What the backend does wrong is noted, and the script ends there. Returns the engine
    that was around it, where there came to be one. `recorded` is told of every round.

    Raises Refused where a round lies outside its capabilities.
    """
    whole = trial.subject
    if not trial.backend.stages & DRIVEN:
        trial.broken = "reference: no stage of its own that rounds drive"
        return None
    if not trial.runs("rounds"):
        return None
    machine: Machine | None = None
    with trial.probing("rounds"):
        try:
            trial.instance = trial.call("plan", trial.backend.make)
            machine = Machine(case, trial, recorded)
            machine.run()
        except Violation as violation:
            trial.broke(violation)
        except Wrong:
            pass
        finally:
            trial.subject = whole
    if machine is not None:
        trial.failures = [machine.placed(failure) for failure in trial.failures]
    trial.recovered.clear()  # of single rounds, whose rows are not those of the case
    if machine is not None:
        machine.layers.close(trial)
    close(trial, trial.instance)
    _verdicts(trial, machine)
    return machine


def _is_its_own(trial: Trial, identity: Identity, stage: str) -> bool:
    """Whether this evidence is of the backend's own work: what `store_kv` wrote is the reference's."""
    written = trial.backend.capabilities.stores_kv and not trial.borrows("store")
    if (identity, stage) == ("kv", "attend") and not written:
        return False
    return stage in trial.called and not trial.borrows(stage)


def _verdicts(trial: Trial, machine: Machine | None) -> None:
    """One cell a kind of evidence and stage, whatever the number of rounds."""
    failed = {(f.identity, f.evidence, f.stage) for f in trial.failures}
    ran = machine is not None and machine.tally.rounds > 0
    cells = {(cell.identity, cell.evidence, cell.stage): cell for cell in trial.cells}
    for identity, stage in _MEASURED:
        if ran and _is_its_own(trial, identity, stage) and not trial.failures:
            cells[identity, "measured", stage] = Cell(
                identity=identity, evidence="measured", status="pass", stage=stage
            )
    for identity, evidence, stage in failed:
        if identity != "contract":
            cells[identity, evidence, stage] = Cell(
                identity=identity, evidence=evidence, status="fail", stage=stage
            )
    for identity, stage in _LENT:
        known = any(key[:2] == (identity, "measured") for key in cells)
        if ran and not known and stage in trial.lent:
            cells[identity, "measured", stage] = Cell(
                identity=identity, evidence="measured", status="not-checked", stage=stage,
                reason=trial.lent[stage],
            )  # fmt: skip
    trial.cells = [c for c in cells.values() if trial.wants(c.identity, c.evidence)]
    if not ran and not trial.failures:
        trial.broken = trial.broken or NOTHING_RAN
    if machine is not None:
        tally = machine.tally
        trial.generated = Generated(
            requests=tally.requests, rounds=tally.rounds, tokens=tally.tokens, ties=tally.ties
        )
