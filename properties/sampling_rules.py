"""Launches of the other rules of sampled acceptance, and the one list of them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.sampling import CHAIN, GREEDY, TARGET_ONLY, TYPICAL, Rule
from treeproof.contract.tree import CandidateTree
from treeproof.properties.plans import Siblings, plans_of, vocabulary
from treeproof.properties.sampled import Floats, Sampled
from treeproof.properties.sampling import (
    UNIT,
    any_coin,
    blank,
    drawn,
    path_of,
    shares,
    target_only_launches,
)

_CHAIN, _DRAFT, _GREEDY, _TYPICAL = 571, 577, 587, 593  # address words of what is drawn
_CLOSE = 2.0**-17
"""Beside an edge, and further from it than float32 can lose over a few dozen tokens."""


def launches(case: VerifyCase, rule: Rule, siblings: Siblings | None = None) -> list[Sampled]:
    """Those of one rule; `siblings` None: by ascending rows. Of `chain` the case is `as_chains(case)`."""
    made: Mapping[Rule, Callable[[VerifyCase, Siblings | None], list[Sampled]]] = {
        TARGET_ONLY: target_only_launches,
        CHAIN: _chain_launches,
        GREEDY: _greedy_launches,
        TYPICAL: _typical_launches,
    }
    return made[rule](case, siblings)


def as_chains(case: VerifyCase) -> VerifyCase:
    """The same case, of each request the path to its deepest leaf alone; where all requests had the
    same number of rows, they have it still."""
    most = [max(request.tree.depth) for request in case.requests]
    if len({request.num_rows for request in case.requests}) == 1:
        most = [min(most)] * len(most)
    chains = map(_as_chain, case.requests, most)
    return msgspec.structs.replace(case, requests=tuple(chains))


def _as_chain(request: Request, depth: int) -> Request:
    tree = request.tree
    path = tree.path(max(range(len(tree)), key=lambda node: (tree.depth[node], -node)))[: depth + 1]
    return msgspec.structs.replace(
        request,
        tree=CandidateTree(
            tuple(tree.tokens[node] for node in path), tuple(range(-1, len(path) - 1))
        ),
        row_of_node=tuple(range(len(path))),
    )


def _chain_launches(case: VerifyCase, siblings: Siblings | None) -> list[Sampled]:
    """The whole chain, and a refusal on the way: by coins on edges, then by numbers of any kind with
    coins close to edges."""
    plans, size = plans_of(case, siblings), vocabulary(case) + 1
    steps = max(1, *(len(plan.tree) - 1 for plan in plans))
    empty = replace(
        blank(case, plans, size), rule=CHAIN,
        draft=np.full((len(plans), steps, size), 1 / size, dtype=np.float32),
    )  # fmt: skip
    found = []
    for turn in (0, 1):
        ends = [len(path_of(case, plan, b, turn, 1)) - 1 for b, plan in enumerate(plans)]
        found.append(_chain(empty, ends, turn, exact=True))
        found.append(_chain(empty, ends, turn, exact=False))
    return found


def _chain(empty: Sampled, ends: Sequence[int], turn: int, *, exact: bool) -> Sampled:
    assert empty.draft is not None
    case, probs, draft = empty.case, empty.probs.copy(), empty.draft.copy()
    coins, last = empty.coins.copy(), empty.last.copy()
    for b, (plan, end) in enumerate(zip(empty.plans, ends, strict=True)):
        for node, row in enumerate(plan.rows[: end + 1]):
            at, words = case.qo_indptr[b] + row, (case.seed, _CHAIN, turn, b, node)
            if node + 1 == len(plan.rows):
                probs[at] = _law(None, 0, probs.shape[1], words)
                continue
            token, accepted = plan.tree.tokens[node + 1], node < end
            of = _exact_step if exact else _close_step
            probs[at], draft[b, node], coins[at] = of(token, accepted, probs.shape[1], words)
        last[b] = any_coin(case.seed, _CHAIN, turn, b, 1)
    what = "coins on the edges" if exact else "coins close to the edges"
    return replace(
        empty, what=f"chain, {what}", probs=probs, draft=draft, coins=coins, last=last, exact=exact,
        last_in_doubt=True,  # it is any
    )  # fmt: skip


def _exact_step(
    token: int, accepted: bool, size: int, words: Sequence[int]
) -> tuple[Floats, Floats, float]:
    """Laws p and q and a coin; q of the token is a power of two, so that p / q is a short fraction."""
    bits = address_hash(*words)
    asked = UNIT >> 1 + bits % 2
    share = 1 + bits // 4 % (asked - 2)
    if accepted and bits // 2 % 2:
        share = asked + bits // 4 % (UNIT - asked)  # the draft was drawn too seldom: it always is
    edge = min(share / asked, 1.0)
    coin = edge - 1 / (2 * UNIT) if accepted else edge
    return _law(token, share, size, words), _law(token, asked, size, (*words, _DRAFT)), coin


def _law(token: int | None, share: int, size: int, words: Sequence[int]) -> Floats:
    """A law in units of 2**-12 of which one token has a given share."""
    others = [t for t in range(size) if t != token]
    law = np.zeros(size, np.float32)
    law[others] = np.array(shares(others, UNIT - share, None, words)) / UNIT
    if token is not None:
        law[token] = share / UNIT
    return law


def _close_step(
    token: int, accepted: bool, size: int, words: Sequence[int]
) -> tuple[Floats, Floats, float]:
    """Any laws, the token likelier in q than in p; the coin just below p / q or just above it."""
    p = np.array(drawn(size, 1000, *words), np.float32) + 1
    q = np.array(drawn(size, 1000, *words, _DRAFT), np.float32) + 1
    p[token] = min(p[token], p.sum() - p[token])  # half of the mass at most
    q[token] += q.sum()
    p, q = p / p.sum(), q / q.sum()
    edge = float(p[token]) / float(q[token])
    return p, q, edge * (1 - _CLOSE if accepted else 1 + _CLOSE)


def _greedy_launches(case: VerifyCase, siblings: Siblings | None) -> list[Sampled]:
    """To a leaf, and to a node on the way, with ties that the smaller token wins; coins mislead."""
    plans, size = plans_of(case, siblings), vocabulary(case)
    empty, found = replace(blank(case, plans, size), rule=GREEDY), []
    for turn in (0, 1):
        probs, coins = empty.probs.copy(), empty.coins.copy()
        for b, plan in enumerate(plans):
            path = path_of(case, plan, b, turn, 1)
            following = dict(pairwise(path))
            for node, row in enumerate(plan.rows):
                at, words = case.qo_indptr[b] + row, (case.seed, _GREEDY, turn, b, node)
                children = [plan.tree.tokens[child] for child in plan.tree.children(node)]
                wanted = following.get(node)
                token = (
                    _outside(children, size, words) if wanted is None else plan.tree.tokens[wanted]
                )
                probs[at] = _peak(token, size, words)
                coins[at] = any_coin(*words, 1)
        last = np.array([any_coin(case.seed, _GREEDY, turn, b) for b in range(len(plans))])
        what = "the likeliest token, of equals the first"
        found.append(replace(empty, what=what, probs=probs, coins=coins, last=last.astype("f4")))
    return found


def _outside(children: Sequence[int], size: int, words: Sequence[int]) -> int:
    """A token that no child carries, the smallest or another."""
    free = [token for token in range(size) if token not in children]
    return free[address_hash(*words, 2) % len(free)]


def _peak(token: int, size: int, words: Sequence[int]) -> Floats:
    """A law whose largest share is this token's, and every other time one of a larger number's too."""
    weights = np.array(drawn(size, 100, *words), np.float32)
    weights[token] = 128
    if token + 1 < size and address_hash(*words, 3) % 2:
        weights[token + 1 + address_hash(*words, 4) % (size - token - 1)] = 128
    law: Floats = weights / weights.sum()
    return law


def _typical_launches(case: VerifyCase, siblings: Siblings | None) -> list[Sampled]:
    """Peaked and flat laws, so that some children are admissible and others are not, by a hair too."""
    plans, size = plans_of(case, siblings), vocabulary(case)
    empty, found = replace(blank(case, plans, size), rule=TYPICAL, exact=False), []
    for turn, (epsilon, delta) in enumerate(((0.09, 0.3), (0.5, 0.9), (0.125, 1.0))):
        probs, last = empty.probs.copy(), empty.last.copy()
        for b, plan in enumerate(plans):
            for node, row in enumerate(plan.rows):
                words = (case.seed, _TYPICAL, turn, b, node)
                children = [plan.tree.tokens[child] for child in plan.tree.children(node)]
                law = _peaked(children, size, words)
                if children and delta == 1 and address_hash(*words, 1) % 3 == 0:
                    law = _at_epsilon(children, epsilon, size, words)
                probs[case.qo_indptr[b] + row] = law
            last[b] = any_coin(case.seed, _TYPICAL, turn, b)
        what = f"typical acceptance, epsilon {epsilon:g} and delta {delta:g}"
        found.append(
            replace(empty, what=what, probs=probs, last=last, epsilon=epsilon, delta=delta)
        )
    return found


def _at_epsilon(children: Sequence[int], epsilon: float, size: int, words: Sequence[int]) -> Floats:
    """A child that has just epsilon, which is not above it; so sharp that delta * exp(-H) is larger."""
    child = children[address_hash(*words, 2) % len(children)]
    likely = [token for token in range(size) if token != child]
    law = np.zeros(size, np.float32)
    law[child] = epsilon
    law[likely[address_hash(*words, 3) % len(likely)]] = 1 - epsilon
    return law


def _peaked(children: Sequence[int], size: int, words: Sequence[int]) -> Floats:
    bits = address_hash(*words)
    weights = np.array(drawn(size, 100, *words), np.float32) + 1
    if bits % 3:
        likely = children if children and bits // 3 % 4 else range(size)
        weights[likely[bits // 12 % len(likely)]] *= 1 << bits // 8 % 8
    law: Floats = weights / weights.sum()
    return law
