"""What the drafter was run on after each round."""

from __future__ import annotations

from typing import Any

from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import STRANGE, Group
from treeproof.engine.checks.extends import extended
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble


def observe_extend(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("extend"):
        return
    rounds = tuple(extended(trial, garble(x, trial.backend.consumes, trial.case.seed)))
    if not trial.borrows("extend"):
        found["extend"] = tuple(
            {
                name: tuple(tuple(STRANGE if c is None else c for c in line) for line in lines)
                for name, lines in made.items()
            }
            for made in rounds
        )
