"""Sampled acceptance in a round, by coins that are given; judged on the very laws it was handed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.counter import address_hash
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, Rule, Sampling
from treeproof.contract.script import DELTA, EPSILON
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.coins import Coins, any_coins, led_coins
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.processing import laws
from treeproof.engine.serving.stage import ask, judged, tell
from treeproof.engine.serving.step import Step
from treeproof.properties import contract
from treeproof.properties.plans import Plan, Siblings, flat_tokens, in_order
from treeproof.properties.sampled import Sampled, judge_sampled
from treeproof.properties.traversal import Prediction


@dataclass(frozen=True)
class Drawing:
    """The coins of a round, of each of its requests, and its tree as the links go."""

    rule: Rule
    coins: tuple[Coins, ...]
    plans: tuple[Plan, ...]


def drawing(step: Step, rule: Rule, vocab: int, siblings: Siblings | None) -> Drawing:
    """Coins by the plain law along each turn's path: float64, and no backend has a part in it but by the
    order of siblings in its links; None: by ascending rows."""
    found, seed, steps = [], step.case.seed, step.made.spec_steps
    plans = step.plans if siblings is None else in_order(step.plans, siblings)
    for b, (request, plan) in enumerate(zip(step.case.requests, plans, strict=True)):
        own = address_hash(seed, b)
        coins, served = any_coins(request.num_rows, steps, vocab, own), step.batch.served[b]
        if served is not None:
            accept = step.batch.turns[b].accept
            end = plan.rows.index(request.row_of_node[accept])
            along = [
                served.truth.logits(served.ready + depth).softmax(0).tolist()
                for depth in range(request.tree.depth[accept] + 1)
            ]
            coins = led_coins(rule, plan, end, along, coins, own)
        found.append(coins)
    return Drawing(rule, tuple(found), plans)


def sample(
    trial: Trial, step: Step, seen: VerifyInput, logits: Tensor, drawn: Drawing
) -> tuple[Accepted, Prediction]:
    """The accepted path of each request and what it emits, by these coins."""
    launch, device = _launch(step, laws(logits), drawn), logits.device
    given = Sampling(
        rule=launch.rule,
        target_probs=torch.from_numpy(launch.probs).to(device),
        coins=torch.from_numpy(launch.coins).to(device),
        final_coins=torch.from_numpy(launch.last).to(device),
        draft_probs=None if launch.draft is None else torch.from_numpy(launch.draft).to(device),
        epsilon=EPSILON,
        delta=DELTA,
    )
    can = trial.backend.capabilities
    own = trial.has("sample") and drawn.rule in can.sampling and not can.own_coins
    if own:
        result = ask(trial, "sample", seen, given, first=step.first)
    else:
        unable = "draws its own coins" if can.own_coins else f"does not know {drawn.rule}"
        unknown = f"its sample stage {unable}" if trial.has("sample") else ""
        trial.lends("sample", unknown)
        result = reference.sample(step.ours, given)
    done = contract.valid_accepted(result, len(step.case.requests), step.made.spec_steps, "sample")
    index, lengths, tokens = (t.tolist() for t in (done.accept_index, done.accept_len, done.tokens))
    failures = judge_sampled(launch, index, lengths, tokens)
    if own:
        given_lines = _lines(launch, drawn)
        wrong = partial(_wrong, launch, drawn, (index, lengths, tokens))
        tell(trial, "sample", step.numbers, given_lines, {}, wrong)
        due = [
            launch.due(b, tuple(run[: max(0, count)]))
            for b, (run, count) in enumerate(zip(tokens, lengths, strict=True))
        ]
        expected = once(len(run) - 1 for run in due)
        trial.accepted("sample", counted("rounds", expected, once(n - 1 for n in lengths)))
        judged(trial, "traversal", "measured", "sample", failures)
    stop_at(trial, failures)
    # What follows goes by what was returned: it is right, or rounding excuses it.
    rows = [
        tuple(row - first for row in path[:count])
        for first, path, count in zip(step.case.qo_indptr, index, lengths, strict=False)
    ]
    emitted = [tuple(run[:count]) for run, count in zip(tokens, lengths, strict=True)]
    return done, Prediction((), tuple(rows), tuple(emitted))


def _lines(launch: Sampled, drawn: Drawing) -> Named:
    """Of each request what decides, in the words of a cause."""
    found: dict[str, tuple[object, ...]] = {
        "coins": tuple(tuple(own.rows.tolist()) for own in drawn.coins),
        "last coins": tuple(launch.last.tolist()),
        "laws": tuple(
            tuple(map(tuple, launch.probs[first : first + request.num_rows].tolist()))
            for first, request in zip(launch.case.qo_indptr, launch.case.requests, strict=False)
        ),
    }
    if launch.draft is not None:
        found["drafters' laws"] = tuple(tuple(map(tuple, laws)) for laws in launch.draft.tolist())
    return found


def _wrong(
    launch: Sampled, drawn: Drawing, made: tuple[list[Any], list[int], list[Any]], given: Named
) -> frozenset[str]:
    """If it had been given these."""
    draft = None if launch.draft is None else np.array(given["drafters' laws"], np.float32)
    other = replace(
        launch,
        probs=np.concatenate([np.array(line, np.float32) for line in given["laws"]]),
        coins=np.concatenate([np.array(line, np.float32) for line in given["coins"]]),
        last=np.array(given["last coins"], np.float32),
        draft=draft,
    )
    return frozenset({"tokens"} if judge_sampled(other, *made) else ())


def _launch(step: Step, probs: Tensor, drawn: Drawing) -> Sampled:
    case = step.case
    coins = np.concatenate([own.rows for own in drawn.coins])
    return Sampled(
        what="coins of a round",
        case=case,
        plans=drawn.plans,
        tokens=flat_tokens(case, drawn.plans),
        probs=probs.cpu().numpy(),
        coins=coins,
        last=np.array([own.last for own in drawn.coins], np.float32),
        exact=False,
        last_in_doubt=True,
        rule=drawn.rule,
        draft=np.stack([own.draft for own in drawn.coins]) if drawn.rule == CHAIN else None,
        epsilon=EPSILON,
        delta=DELTA,
    )
