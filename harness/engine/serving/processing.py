"""Logits of a round as its requests ask for them: penalties, grammars and temperatures along paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.checks.requests import constraints
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.params import asked_now
from treeproof.engine.serving.stage import ask, judged, tell
from treeproof.engine.serving.step import Step
from treeproof.oracles.processed import Asked
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
    found = made.cpu().numpy()
    plain = _given((asked_now(None, vocab),) * len(asked))
    nothing = {name: plain[name] for name in _PARAMETERS}
    wrong = partial(_wrong, launch, found)
    tell(trial, "process", step.numbers, _given(asked), {}, wrong, nothing=nothing)
    judged(trial, "output", "measured", "process", judge_processed(launch, found))
    return made


_NAMES = {
    "counts": ("counts",),
    "grammar states": ("state",),
    "penalties": ("frequency", "presence", "repetition"),
    "biases": ("bias",),
    "temperatures": ("temperature",),
    "min-ps": ("min_p",),
}
"""What a request asks for, in the words of a cause."""


_PARAMETERS = ("penalties", "biases", "temperatures", "min-ps")


def _given(asked: Sequence[Asked]) -> Named:
    return {
        name: tuple(tuple(getattr(one, field) for field in fields) for one in asked)
        for name, fields in _NAMES.items()
    }


def _wrong(launch: Processed, found: npt.NDArray[np.float32], given: Named) -> frozenset[str]:
    """If these requests had asked for that."""
    asked = []
    for b, own in enumerate(launch.asked):
        told = {
            field: value
            for name, fields in _NAMES.items()
            for field, value in zip(fields, given[name][b], strict=True)
        }
        asked.append(replace(own, **told))
    wrong = judge_processed(replace(launch, asked=tuple(asked)), found)
    return frozenset({"logits"} if wrong else ())


def laws(logits: Tensor) -> Tensor:
    """(T, vocabulary) probabilities; of rows that no grammar allows, which are free, any."""
    probs = logits.softmax(dim=1)
    return torch.where(probs.isnan(), 1 / probs.shape[1], probs)
