"""Faults of single rules of sampled acceptance: of ties, of another proposal, of typical acceptance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, GREEDY, TYPICAL, Rule, Sampling
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Sample = Callable[[VerifyInput, Sampling], Accepted]


@dataclass(frozen=True)
class _OfRule:
    """`wrong(right, x, given)` in place of `sample`, where it is asked for this rule."""

    rule: Rule
    wrong: Callable[[Sample, VerifyInput, Sampling], Accepted]

    def into(self, backend: Backend) -> Backend:
        def around(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
            return self.wrong(right, x, given) if given.rule == self.rule else right(x, given)

        return wrapped(backend, "sample", around)


def _last_of_equals(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    laws = given.target_probs
    best = laws.shape[1] - 1 - laws.flip(1).argmax(1, keepdim=True)
    return right(x, replace(given, target_probs=torch.zeros_like(laws).scatter_(1, best, 1.0)))


def _drafts(given: Sampling) -> Tensor:
    assert given.draft_probs is not None
    return given.draft_probs


def _proposal_rounded(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """Drafts were drawn by one law and are weighed by another, in lower precision."""
    rounded = _drafts(given).bfloat16().float()
    return right(x, replace(given, draft_probs=rounded / rounded.sum(-1, keepdim=True)))


def _proposal_uniform(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    asked = _drafts(given)
    return right(x, replace(given, draft_probs=torch.full_like(asked, 1 / asked.shape[-1])))


def _proposal_of_next(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """Each step is weighed by the law of the step after it."""
    return right(x, replace(given, draft_probs=_drafts(given).roll(-1, 1)))


def _epsilon_ignored(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    return right(x, replace(given, epsilon=1.0))


_WRONG = (
    Wrong(
        "last-of-equals", "", "of equal probabilities the last wins, where elsewhere the first does",
        "unknown", _OfRule(GREEDY, _last_of_equals), case(request()), ("B042",),
    ),
    Wrong(
        "another-proposal", "rounded", "a draft is weighed by a proposal in lower precision than the "
        "one it was drawn by", "unknown", _OfRule(CHAIN, _proposal_rounded),
        case(request((-1, 0))), ("B058",),
    ),
    Wrong(
        "another-proposal", "uniform", "a draft is weighed as if all tokens had been as likely",
        "unknown", _OfRule(CHAIN, _proposal_uniform), case(request((-1, 0))), ("B058",),
    ),
    Wrong(
        "another-proposal", "next-step", "a draft is weighed by the proposal of the next step",
        "unknown", _OfRule(CHAIN, _proposal_of_next), case(request((-1, 0, 1))), ("B058",),
    ),
    Wrong(
        "epsilon-ignored", "", "typical acceptance looks at the entropy alone",
        "unknown", _OfRule(TYPICAL, _epsilon_ignored), case(request(FORK), seed=3),
    ),
)  # fmt: skip


FAULTS = tuple(
    fault
    for wrong in _WRONG
    for fault in faults_of(
        (wrong,),
        stage="sample",
        identity="traversal",
        evidence="measured",
        plant=lambda does: does.into,
        applies=lambda backend, rule=wrong.does.rule: (  # type: ignore[misc]
            "sample" in backend.stages and rule in backend.capabilities.sampling
        ),
    )
)
