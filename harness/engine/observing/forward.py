"""What a whole engine shows: which token moves which row, and its logits."""

from __future__ import annotations

from typing import Any

from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import Forward, Group
from treeproof.engine.checks.forward import explained_model, forward_call, influence_of
from treeproof.engine.checks.trial import Trial


def observe_forward(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    # Layers reach further than one window.
    if not trial.has("forward") or trial.case.shape.window is not None:
        return
    start, forward = forward_call(trial, x)
    logits = None
    if explained_model(trial.instance) is not None:
        # The first run of all: what later ones leave behind is not in it.
        every = forward(start.tokens, start.prefixes)
        logits = every[trial.scene.real_index].double().cpu()
    found["forward"] = Forward(influence_of(trial, start, forward), logits)
