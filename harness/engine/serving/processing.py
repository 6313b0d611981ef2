"""Logits of a round as its requests ask for them: penalties, grammars and temperatures along paths."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.requests import constraints
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.params import asked_now
from treeproof.engine.serving.stage import ask, judged
from treeproof.engine.serving.step import Step
from treeproof.properties.plans import flat_tokens
from treeproof.properties.processing import Processed, judge_processed
from treeproof.properties.returned import valid_processed


def process(trial: Trial, step: Step, seen: VerifyInput, logits: Tensor) -> Tensor:
    """Logits (T, vocabulary) float32 as they are, where nobody asks for others."""
    if not any(served is not None and served.params.adjusts for served in step.batch.served):
        return logits
    vocab = logits.shape[1]
    asked = tuple(asked_now(served, vocab) for served in step.batch.served)
    given = constraints(asked, logits.device)
    if not trial.has("process"):
        trial.lends("process")
        return reference.process(step.ours, logits, given)
    made = valid_processed(ask(trial, "process", seen, logits, given, first=step.first), logits)
    tokens, numbers = flat_tokens(step.case, step.plans), logits.cpu().numpy()
    launch = Processed(step.case, step.plans, asked, tokens, numbers, exact=False)
    judged(trial, "output", "measured", "process", judge_processed(launch, made.cpu().numpy()))
    return made


def laws(logits: Tensor) -> Tensor:
    """(T, vocabulary) probabilities; of rows that no grammar allows, which are free, any."""
    probs = logits.softmax(dim=1)
    return torch.where(probs.isnan(), 1 / probs.shape[1], probs)
