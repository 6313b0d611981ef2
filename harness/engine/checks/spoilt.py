"""Sampling that is handed numbers which are no probabilities and no coins: refused, or kept to a request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.backends.reference import build as build_reference
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, TARGET_ONLY, Rule, Sampling
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.malformed import is_refusal, two_chains
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.violation import Violation

_ONE_IN = 4
_ROWS, _STEPS, _SIZE = 3, 2, 4

Spoil = Callable[[Sampling], Tensor]
_SPOILT: dict[str, Spoil] = {
    "a probability is NaN": lambda given: given.target_probs[1].fill_(math.nan),
    "a probability is below 0": lambda given: given.target_probs[1, 1:2].fill_(-0.5),
    "no token has any probability": lambda given: given.target_probs[1].zero_(),
    "probabilities add up to 3": lambda given: given.target_probs[1].mul_(3),
    "a coin is 1": lambda given: given.coins[:_ROWS].fill_(1.0),
    "a coin is NaN": lambda given: given.coins[:_ROWS].fill_(math.nan),
    "a coin is below 0": lambda given: given.coins[:_ROWS].fill_(-1.0),
    "the last coin is 1": lambda given: given.final_coins[:1].fill_(1.0),
    "the last coin is NaN": lambda given: given.final_coins[:1].fill_(math.nan),
}
"""What is wrong with the first request's numbers, and how it is done."""


def _drafts(given: Sampling) -> Tensor:
    """The law that the first request's first draft was drawn from."""
    assert given.draft_probs is not None
    return given.draft_probs[0, 0]


_DRAFTS_SPOILT: dict[str, Spoil] = {
    "a probability of the drafter is NaN": lambda given: _drafts(given)[1:2].fill_(math.nan),
    "a probability of the drafter is below 0": lambda given: _drafts(given)[1:2].fill_(-0.5),
    "no token has any probability of the drafter": lambda given: _drafts(given).zero_(),
    "probabilities of the drafter add up to 3": lambda given: _drafts(given).mul_(3),
}
_BY_RULE: dict[Rule, dict[str, Spoil]] = {
    TARGET_ONLY: _SPOILT,
    CHAIN: {**_SPOILT, **_DRAFTS_SPOILT},
}


def judge_spoilt(trial: Trial) -> None:
    """Two chains of three rows; the first one's numbers are spoilt, one kind after the other."""
    can = trial.backend.capabilities
    rules = [rule for rule in _BY_RULE if rule in can.sampling]
    able = trial.has("sample") and rules and not can.own_coins
    wanted = trial.runs("malformed") and trial.wants("traversal", "measured")
    if not (able and wanted and trial.options.due(trial.case.seed, 2, _ONE_IN)):
        return
    case, device = trial.case, trial.options.device
    scene, made = two_chains(case.shape, case.layout, case.mask, device)
    if can.refusal(scene.case, device) is not None:
        return
    x = build_reference(copied(made))
    x = replace(x, draft_token=torch.tensor([0, 1, 2] * 2, device=device), spec_steps=_STEPS)
    with trial.probing("malformed"):
        try:
            failures = [failure for rule in rules for failure in _failures(trial, x, rule)]
        except Violation as violation:
            trial.broke(violation)
            return
        if failures and not trial.borrows("sample"):
            trial.judged("traversal", "measured", "sample", failures)


def _failures(trial: Trial, x: VerifyInput, rule: Rule) -> Iterator[Failure]:
    device = trial.scene.device
    whole = Sampling(
        rule=rule,
        target_probs=torch.full((2 * _ROWS, _SIZE), 1 / _SIZE, device=device),
        coins=torch.full((2 * _ROWS,), 0.125, device=device),
        final_coins=torch.full((2,), 0.625, device=device),
        draft_probs=torch.full((2, _STEPS, _SIZE), 1 / _SIZE, device=device)
        if rule == CHAIN
        else None,
    )
    right = _lines(_sampled(trial, x, whole), 1)
    for what, spoil in _BY_RULE[rule].items():
        given = copied(whole)
        spoil(given)
        try:
            done = _sampled(trial, x, given)
        except Violation as violation:
            if is_refusal(violation.__cause__):
                continue
            raise
        if _lines(done, 1) != right:
            said = f"where in request 0 {what}, request 1 is {_lines(done, 1)}, expected {right}"
            yield _failure(said)
        elif not _is_of_the_request(*_lines(done, 0)):
            said = f"where in request 0 {what}, it is given rows or tokens that are none of its own"
            yield _failure(f"{said}: {_lines(done, 0)}")


def _sampled(trial: Trial, x: VerifyInput, given: Sampling) -> Accepted:
    result = trial.call("sample", trial.instance.sample, copied(x), copied(given))
    return contract.valid_accepted(result, 2, _STEPS, "sample")


def _lines(done: Accepted, b: int) -> tuple[list[int], int, list[int]]:
    return done.accept_index[b].tolist(), int(done.accept_len[b]), done.tokens[b].tolist()


def _is_of_the_request(index: list[int], length: int, tokens: list[int]) -> bool:
    """Rows of request 0, the root first, and tokens of the vocabulary; then -1."""
    if not 1 <= length <= _STEPS + 1:
        return False
    rows, rest = index[:length], [*index[length:], *tokens[length:]]
    return (
        rows == list(range(length))
        and all(0 <= token < _SIZE for token in tokens[:length])
        and all(cell == -1 for cell in rest)
    )


def _failure(message: str) -> Failure:
    """These requests are none of the case's: the message alone says which is meant."""
    return Failure(
        identity="traversal", kind="malformed-wrong-acceptance", evidence="measured", stage="sample",
        message=f"on two chains of three rows, {message}",
    )  # fmt: skip
