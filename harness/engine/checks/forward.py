"""A whole engine as a black box: tokens and a tree in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.target_model import TargetModel
from treeproof.engine.checks.stages import Built
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.target import TargetResult, target_logits
from treeproof.properties.declared import tree_block
from treeproof.properties.influence import (
    asked,
    judge_influence,
    judge_logits,
    readings,
    valid_logits,
)
from treeproof.properties.probes.influence import Asked, ForwardCall, Influence, influence
from treeproof.properties.tables import recover_parents
from treeproof.properties.violation import Violation, contract_failure

_NOISY_RUNS = 3
"""Runs without a change, of an engine that says that it is not deterministic."""


def judge_forward(trial: Trial, built: Built) -> None:
    """Who moves whom, and the logits themselves where the engine says which model it runs."""
    if not trial.has("forward") or not trial.runs("influence"):
        return
    with trial.probing("influence"), trial.timed("probe"):
        try:
            _judge(trial, built)
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial, built: Built) -> None:
    scene, able = trial.scene, trial.backend.capabilities
    start, forward = forward_call(trial, built.x)
    logits = forward(start.tokens, start.prefixes)
    again = forward(start.tokens, start.prefixes)
    if able.deterministic and not torch.equal(again[scene.real_index], logits[scene.real_index]):
        message = "the same forward twice gives other logits; declare deterministic=False if meant"
        raise Violation(contract_failure("nondeterministic", "forward", message))
    if trial.wants("output", "measured"):
        _logits(trial, logits)
    if not trial.wants("visibility", "measured"):
        return
    if trial.case.shape.window is not None:
        reason = "layers reach further than one window: influence does not show it"
        trial.not_checked("visibility", "measured", "forward", reason)
        return
    found = influence_of(trial, start, forward)
    parents = tuple(recover_parents(tree_block(r, scene)) for r in readings(scene, found))
    trial.recover("visibility", "measured", "parents", parents)
    trial.judged("visibility", "measured", "forward", judge_influence(scene, found))


def forward_call(trial: Trial, x: VerifyInput) -> tuple[Asked, ForwardCall]:
    """What the runs start from, and the engine as a function of tokens alone."""
    scene, vocab = trial.scene, trial.backend.capabilities.vocab_size
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    start = asked(scene, x.draft_token, prefix_tokens(trial.case, vocab), vocab)

    def forward(tokens: Tensor, before: Sequence[Tensor]) -> Tensor:
        given = tuple(prefix.clone() for prefix in before)
        run = trial.instance.forward
        logits = trial.call("forward", run, replace(seen, draft_token=tokens.clone()), given)
        return valid_logits(logits, scene, vocab)

    return start, forward


def influence_of(trial: Trial, start: Asked, forward: ForwardCall) -> Influence:
    return influence(forward, start, 0 if trial.backend.capabilities.deterministic else _NOISY_RUNS)


def model_of(instance: object) -> TargetModel | None:
    """The model that an engine says it runs, where the oracle knows it."""
    model = getattr(instance, "model", None)
    return model if isinstance(model, TargetModel) else None


def explained_model(instance: object) -> TargetModel | None:
    """That model where causes can be told by it: statements about layers know no windows."""
    model = model_of(instance)
    return None if model is None or any(model.windows) else model


def _logits(trial: Trial, logits: Tensor) -> None:
    model = model_of(trial.instance)
    if model is None:
        reason = "the engine names no model that the oracle knows"
        trial.not_checked("output", "measured", "forward", reason)
        return
    failures: list[Failure] = []
    for b, truth in enumerate(_truth(trial.case, model)):
        failures += judge_logits(trial.scene, b, truth, logits)
    trial.judged("output", "measured", "forward", failures)


@lru_cache(maxsize=2)
def _truth(case: VerifyCase, model: TargetModel) -> tuple[TargetResult, ...]:
    prefixes = prefix_tokens(case, model.vocab_size)
    return tuple(
        target_logits(
            model,
            prefixes[b].tolist(),
            request.tree,
            [token % model.vocab_size for token in request.tree.tokens],
        )
        for b, request in enumerate(case.requests)
    )
