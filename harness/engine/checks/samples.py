"""What sampled acceptance emits for given probabilities and coins, judged by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.backends.reference import build as build_reference
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, GREEDY, RULES, Rule, Sampling
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract
from treeproof.properties.plans import Siblings, ascending
from treeproof.properties.sampled import Sampled, judge_sampled
from treeproof.properties.sibling_order import recover_siblings
from treeproof.properties.violation import Violation


def judge_samples(trial: Trial, x: VerifyInput) -> None:
    """A call a launch, of each rule that the backend knows; no other stage of it has a part in that
    but the links of its build."""
    if not (trial.has("sample") and trial.runs("sample") and trial.wants("traversal", "measured")):
        return
    can = trial.backend.capabilities
    rules = [rule for rule in RULES if rule in can.sampling]
    if can.own_coins:
        reason = "it draws its own coins: what it does with given ones is not seen"
        trial.not_checked("traversal", "measured", "sample", reason)
        rules = [rule for rule in rules if rule == GREEDY]  # asks no coin
    with trial.probing("sample"):
        try:
            tried = [_tried(trial, x, rule) for rule in rules]
        except Violation as violation:
            trial.broke(violation)
            return
        ran = [one for one in tried if one.expected]
        if not ran or trial.borrows("sample"):
            return
        for one in ran:
            trial.accepted("sample", counted("sampled", once(one.expected), once(one.observed)))
        trial.judged("traversal", "measured", "sample", [f for one in ran for f in one.failures])


@dataclass
class _Tried:
    """What came of a rule: drafts that walks are to accept, and do."""

    failures: list[Failure] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    observed: list[int] = field(default_factory=list)


def _tried(trial: Trial, x: VerifyInput, rule: Rule) -> _Tried:
    """Nothing where the trees that the rule is asked about are none that the backend takes."""
    found = _Tried()
    for launch, done in sampled(trial, x, rule):
        tables = (done.accept_index, done.accept_len, done.tokens)
        index, lengths, tokens = (table.tolist() for table in tables)
        with trial.timed("check"):
            found.failures += judge_sampled(launch, index, lengths, tokens)
            for b, length in enumerate(lengths):
                run = launch.due(b, tuple(tokens[b][: max(0, length)]))
                found.expected.append(len(run) - 1)
                found.observed.append(length - 1)
    return found


def sampled(trial: Trial, x: VerifyInput, rule: Rule) -> Iterator[tuple[Sampled, Accepted]]:
    """Each launch of a rule and what the backend returned for it. Raises Violation."""
    siblings = None if rule == CHAIN else sibling_order(trial, x)
    if rule == CHAIN:
        case = trial.prepared.sampled.case_of(rule)
        if trial.backend.capabilities.refusal(case, trial.options.device) is not None:
            return
        x = build_reference(staged(case, trial.options.device)[1])
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    for launch in trial.prepared.sampled.of(rule, siblings):
        given = _inputs(trial, seen, launch)
        handed = copied(given[0]), copied(given[1])
        result = trial.call("sample", trial.instance.sample, *handed)
        for before, after in zip(given, handed, strict=True):
            trial.unchanged("sample", before, after)
        requests = len(launch.case.requests)
        yield launch, contract.valid_accepted(result, requests, x.spec_steps, "sample")


def sibling_order(trial: Trial, x: VerifyInput) -> Siblings | None:
    """As the links go that `sample` is handed; None where that is by ascending rows, or no tree at all, or
    where it reads no links."""
    tables = x.retrieve_next_token, x.retrieve_next_sibling
    if not {"retrieve_next_token", "retrieve_next_sibling"} <= trial.backend.consumes:
        return None
    if tables[0] is None or tables[1] is None:
        return None
    siblings = recover_siblings(trial.case, tables[0].tolist(), tables[1].tolist())
    return None if siblings == ascending(trial.case) else siblings


def _inputs(trial: Trial, seen: VerifyInput, launch: Sampled) -> tuple[VerifyInput, Sampling]:
    device, own_coins = trial.scene.device, trial.backend.capabilities.own_coins

    def on_device(values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(device)

    def coins(values: npt.NDArray[Any]) -> Tensor:
        given = on_device(values)
        return torch.full_like(given, math.nan) if own_coins else given

    x = seen
    if "draft_token" in trial.backend.consumes:
        x = replace(seen, draft_token=on_device(launch.tokens))
    return x, Sampling(
        rule=launch.rule,
        target_probs=on_device(launch.probs),
        coins=coins(launch.coins),
        final_coins=coins(launch.last),
        draft_probs=None if launch.draft is None else on_device(launch.draft),
        threshold_single=launch.threshold_single,
        threshold_acc=launch.threshold_acc,
        epsilon=launch.epsilon,
        delta=launch.delta,
        seed=0 if own_coins else None,
    )
