"""Sampling by a generator of the backend's own: its draws, counted call by call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from treeproof.contract.counter import address_hash
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import Rule, Sampling
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.many import many
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.chance import TREE, Chances, calls_for, chances, judge_chance
from treeproof.properties.violation import contract_failure

_SEED = 601  # address word
_TOGETHER = 128
"""Requests in a call."""

Runs = list[tuple[int, ...]]


def chance_failures(trial: Trial, rule: Rule) -> list[Failure] | None:
    """None where nothing can be run, or nothing is left to chance. Raises Violation."""
    given = chances(rule)
    x = many(trial, TREE.parents, _TOGETHER)
    if given is None or x is None:
        return None
    if "draft_token" in trial.backend.consumes:
        tokens = torch.tensor(TREE.tokens * _TOGETHER, device=trial.scene.device)
        x = replace(x, draft_token=tokens)
    first = address_hash(trial.case.seed, _SEED) >> 33
    seeds = range(first, first + calls_for(given.law, _TOGETHER))
    calls = [_sampled(trial, x, given, seed) for seed in seeds]
    if trial.backend.capabilities.deterministic and _sampled(trial, x, given, first) != calls[0]:
        message = f"sample emits other tokens with seed {first} again; declare deterministic=False if meant"
        trial.note(contract_failure("nondeterministic", "sample", message))
    emitted = [run for call in calls for run in call]
    expected = [(len(run) - 1, share * len(emitted)) for run, share in given.law.items()]
    observed = once(len(run) - 1 for run in emitted)
    trial.accepted("sample", counted("law", expected, observed))
    return judge_chance(given.law, calls)


def _sampled(trial: Trial, x: VerifyInput, given: Chances, seed: int) -> Runs:
    device = trial.scene.device
    rows = len(TREE) * _TOGETHER
    handed = Sampling(
        given.rule,
        torch.from_numpy(given.probs).repeat(_TOGETHER, 1).to(device),
        torch.full((rows,), math.nan, device=device),
        torch.full((_TOGETHER,), math.nan, device=device),
        None
        if given.draft is None
        else torch.from_numpy(given.draft).repeat(_TOGETHER, 1, 1).to(device),
        seed=seed,
    )
    with _torch_seeded(seed, device):
        result = trial.call("sample", trial.instance.sample, copied(x), handed)
    done = contract.valid_accepted(result, _TOGETHER, x.spec_steps, "sample")
    lines = zip(done.tokens.tolist(), done.accept_len.tolist(), strict=True)
    return [tuple(run[: max(0, length)]) for run, length in lines]


@contextmanager
def _torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own generators, for who draws from them; afterwards they are as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
