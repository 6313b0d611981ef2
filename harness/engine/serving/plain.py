"""What a request has emitted and what it has cached, against plain decoding in float64."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.sampling import CHAIN, TYPICAL, Rule
from treeproof.contract.script import DELTA, EPSILON, Params
from treeproof.contract.target_model import TargetModel
from treeproof.engine.serving.coins import Coins
from treeproof.engine.serving.memory import Memory, companion_rows, drafter_codes
from treeproof.engine.serving.request import Served
from treeproof.engine.serving.tally import Tally
from treeproof.oracles.continuation import Continuation, Sequence64, sequence64
from treeproof.oracles.law import Walk, target_only
from treeproof.oracles.path_laws import Laws
from treeproof.oracles.rules import chain, typical, typical_ends, typical_ends_in_doubt
from treeproof.oracles.sampled import outcomes
from treeproof.oracles.target_errors import Errors
from treeproof.properties.plans import Plan
from treeproof.properties.serving import judge_contents, judge_logits, judge_run, judge_token

_LOUD_32, _LOUD = 2.0**14, 64.0
"""Units by which logits are off that are looked at at once: those of float32, and of a narrower dtype."""


class Plain:
    """Plain decoding of the model; `errors` are those that an engine with this backend may make."""

    def __init__(self, model: TargetModel, errors: Errors) -> None:
        self.model, self.errors = model, errors
        self._loud = _LOUD_32 * errors.unit + _LOUD * errors.handed

    def emit(self, served: Served, tokens: Sequence[int], tally: Tally) -> list[Failure]:
        """Each token against greedy decoding of all before it; up to the first that is wrong, they are
        the request's then."""
        for token in tokens:
            position = len(served.tokens)
            served.truth.grow(position)
            tally.tokens += 1
            if token != served.truth.best(position - 1):
                failures = self._judge_other(served, token)
                if failures:
                    return failures
                tally.ties += 1
            served.truth = served.truth.with_token(position, token)
            served.tokens.append(token)
        return []

    def _judge_other(self, served: Served, token: int) -> list[Failure]:
        """A token that greedy decoding does not emit here: does rounding leave it open?"""
        last = len(served.tokens) - 1
        truth = sequence64(self.model, tuple(served.tokens), self.errors)
        logits = served.truth.adjusted(truth.logits[-1], last)
        return judge_token(
            served.number, last + 1, token, logits, self._limit(served.params, truth)
        )

    def emit_drawn(
        self, served: Served, run: Sequence[int], plan: Plan, rule: Rule, coins: Coins, tally: Tally
    ) -> list[Failure]:
        """A run that was sampled along a tree, against the process that samples token by token with the
        same coins: its laws are those after the tokens alone."""
        first = len(served.tokens)
        after = Laws(served.truth, first, plan.tree)
        walk = _walk(rule, plan, after, coins)
        values: dict[Hashable, Fraction] = {
            node: Fraction(float(coins.rows[row])) for node, row in enumerate(plan.rows)
        }
        values["last"] = Fraction(float(np.float32(coins.last)))
        tally.tokens += len(run)
        (right,) = outcomes(walk, values)
        if tuple(run) != right:
            tails = [list(run[:-1]), list(right[:-1])]
            if rule == TYPICAL:
                tails += _paths(plan)
            limit = max(
                self._limit(
                    served.params,
                    sequence64(self.model, (*served.tokens, *tail), self.errors),
                )
                for tail in tails
            )
            walks = [walk]
            if rule == TYPICAL:
                ends = typical_ends_in_doubt(plan.tree, _floats(after), EPSILON, DELTA, limit)
                walks = [typical(plan.tree, after, end) for end in sorted(ends)]
            judged = [judge_run(served.number, first, run, right, w, values, limit) for w in walks]
            if all(judged) and not _cut_in_doubt(
                served.truth, first, run, right, plan, rule, limit
            ):
                return judged[0]
            tally.ties += 1
        served.truth = served.truth.with_tokens(first, run)
        served.tokens += run
        return []

    def judge_logits(self, served: Served, logits: Tensor) -> list[Failure]:
        """Logits (n, vocabulary) of a round after the last n tokens with keys, whose numbers are looked at
        more closely where they are far off; `read_back` looks at all of them."""
        served.logits.append(logits)
        off = (logits - served.truth.raw(served.ready - len(logits), len(logits))).abs()
        if bool((off <= self._loud).all()):
            return []
        return self._all_logits(
            served, sequence64(self.model, tuple(served.tokens[: served.ready]), self.errors)
        )

    def _all_logits(self, served: Served, truth: Sequence64) -> list[Failure]:
        """Those of all rounds so far."""
        if not served.logits:
            return []
        found = torch.cat(served.logits)
        first = served.ready - len(found)
        return judge_logits(served.number, first, found, truth.logits[first:], truth.limit[first:])

    def _limit(self, params: Params, truth: Sequence64) -> float:
        """How far an engine's adjusted logits may be off, after any of these tokens."""
        rate = max(params.repetition, 1 / params.repetition)
        return float(truth.limit.max()) * rate / params.temperature

    def read_back(
        self, served: Served, slots: Tensor, memory: Memory, *, handed_out: bool
    ) -> list[Failure]:
        """Logits of all rounds; columns up to `ready`, the last of which lie in `slots` (n,), and their
        companions bit for bit."""
        gone = served.ready - len(slots)
        truth = sequence64(self.model, tuple(served.tokens[: served.ready]), self.errors)
        wrong = self._all_logits(served, truth)
        if wrong:
            return wrong
        exactly = truth.key_limit.new_zeros(1, len(slots), 1, 1)
        after = served.tokens[gone + 1 : served.ready + 1]
        beside = zip(memory.companions, companion_rows(served.codes[gone:]), strict=True)
        codes = drafter_codes(served.codes[gone : gone + len(after)], after)
        drafted = zip(("keys", "values"), memory.drafter, companion_rows(codes), strict=True)
        keys, values = memory.held(slots)
        held = [
            ("keys", keys, truth.keys[:, gone:], truth.key_limit[:, gone:]),
            ("values", values, truth.values[:, gone:], truth.value_limit[:, gone:]),
            *(
                ("companions", cache[None, slots], rows.double()[None], exactly)
                for cache, rows in beside
            ),
            *(
                (
                    f"{name} of the drafter",
                    cache[None, slots[: len(after)]],
                    rows.double()[None],
                    exactly[:, : len(after)],
                )
                for name, cache, rows in drafted
            ),
        ]
        return judge_contents(served.number, gone, held, handed_out=handed_out)


def _walk(rule: Rule, plan: Plan, after: Laws, coins: Coins) -> Walk:
    """What the rule emits by these laws."""
    if rule == CHAIN:
        drafted = [list(map(Fraction, law)) for law in coins.draft.tolist()]
        return chain(plan.tree, after, drafted)
    if rule == TYPICAL:
        (end,) = sorted(typical_ends(plan.tree, _floats(after), EPSILON, DELTA))[:1]
        return typical(plan.tree, after, end)
    return target_only(plan.tree, after)


def _floats(laws: Laws) -> list[list[float]]:
    return [list(map(float, law)) for law in laws[:]]


def _paths(plan: Plan) -> list[list[int]]:
    """The drafts that lead to each node."""
    tree = plan.tree
    return [[tree.tokens[on] for on in tree.path(node)[1:]] for node in range(len(tree))]


def _cut_in_doubt(
    truth: Continuation,
    first: int,
    run: Sequence[int],
    right: Sequence[int],
    plan: Plan,
    rule: Rule,
    limit: float,
) -> bool:
    """Whether a min-p may cut other tokens off where two runs part; by `typical`, anywhere in the tree."""
    if rule == TYPICAL:
        paths = _paths(plan)
    else:
        parted = [i for i, pair in enumerate(zip(run, right, strict=False)) if len({*pair}) > 1]
        paths = [list(run[: parted[0]])] if parted else []
    near = [truth.with_tokens(first, path).from_cut(first + len(path) - 1) for path in paths]
    # Both the logit and the edge, which goes by the largest, may be off.
    return any(far is not None and far <= 2 * limit for far in near)
