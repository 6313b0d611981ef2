"""Launches of sampled acceptance that ask the rule `target-only` where it is hardest.

Most coins are laid on the very edges, where `<` and `<=` part: probabilities are whole numbers of
2**-12 and coins of 2**-13, and the mass that a last token is drawn from is a power of two, so that
float32 has every sum, product and quotient of them exactly and no coin is in doubt. One launch in
each check holds arbitrary numbers; there a coin within the rounding of an edge is a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash, hash_words
from treeproof.properties.plans import Plan, Siblings, flat_tokens, plans_of, vocabulary
from treeproof.properties.sampled import Sampled

UNIT = 1 << 12
_SHARE, _COIN, _LAST, _ANY, _STOP = 503, 509, 521, 523, 541  # address words of what is drawn
_MOST_TURNS = 4
_THRESHOLDS = ((0.625, 1.0), (1.0, 0.75), (0.0, 1.0), (1.0, 0.0))
"""(single, acc); where one is 0 any probability is enough, but none is not: who holds one of them from below
by more than rounding asks for is told. A third of an edge is no float, and no nearer to a coin than a third
of 2**-13."""


def target_only_launches(case: VerifyCase, siblings: Siblings | None) -> list[Sampled]:
    """A few paths to a leaf, and one that stops on the way, by coins on edges; then by coins between
    them, by lower thresholds, and by arbitrary numbers."""
    size, plans = vocabulary(case), plans_of(case, siblings)
    turns = min(_MOST_TURNS, max(len(plan.tree.leaves) for plan in plans))
    beside = _directed(blank(case, plans, size), [range(len(p.tree)) for p in plans], -1, True)
    found = []
    for turn in range(turns + 1):
        paths = [path_of(case, plan, b, turn, turns) for b, plan in enumerate(plans)]
        found.append(_directed(beside, paths, turn, at_edges=True))
        if turn == turns:
            inside = _directed(beside, paths, turn, at_edges=False)
            edges = [(share, 1.0) for share in _refused(inside, paths)[:1]]
            found += [inside, *(_lowered(inside, *pair) for pair in (*_THRESHOLDS, *edges))]
    return [*found, _arbitrary(blank(case, plans, size))]


def _lowered(like: Sampled, single: float, acc: float) -> Sampled:
    what = f"thresholds of {single:g} (single) and {acc:g} (acc)"
    return replace(like, what=what, threshold_single=single, threshold_acc=acc)


def _refused(given: Sampled, paths: Sequence[Sequence[int]]) -> list[float]:
    """Probabilities of the children that the last nodes of these paths refuse, the largest first: a
    threshold equal to one takes that child."""
    found = []
    for b, (plan, path) in enumerate(zip(given.plans, paths, strict=True)):
        law = given.probs[given.case.qo_indptr[b] + plan.rows[path[-1]]]
        found += [float(law[plan.tree.tokens[child]]) for child in plan.tree.children(path[-1])]
    return sorted((share for share in found if share), reverse=True)


def blank(case: VerifyCase, plans: tuple[Plan, ...], size: int) -> Sampled:
    """Uniform laws, coins of 0."""
    tokens, rows = flat_tokens(case, plans), case.num_rows
    probs = np.full((rows, size), 1 / size, dtype=np.float32)
    coins, last = np.zeros(rows, np.float32), np.zeros(len(plans), np.float32)
    return Sampled("nothing drawn yet", case, plans, tokens, probs, coins, last, exact=True)


def path_of(case: VerifyCase, plan: Plan, b: int, turn: int, turns: int) -> Sequence[int]:
    """From the root to this turn's leaf; in the turn after the last one, to some node on the way."""
    leaves = plan.tree.leaves
    path = plan.tree.path(leaves[turn * len(leaves) // turns % len(leaves)])
    if turn < turns:
        return path
    # Short of the leaf, where there is one: a refusal needs somebody who is refused.
    return path[: 1 + address_hash(case.seed, _STOP, b) % max(1, len(path) - 1)]


def _directed(
    beside: Sampled, paths: Sequence[Sequence[int]], turn: int, at_edges: bool
) -> Sampled:
    """`beside`, with laws and coins on these nodes that lead from one to the next and stop at the
    last; in turn -1 every node is given a law and coins that stop there."""
    case, size = beside.case, beside.probs.shape[1]
    probs, coins, last = beside.probs.copy(), beside.coins.copy(), beside.last.copy()
    for b, (plan, path) in enumerate(zip(beside.plans, paths, strict=True)):
        for place, node in enumerate(path):
            words, at = (case.seed, turn, b, node), case.qo_indptr[b] + plan.rows[node]
            children = [plan.tree.tokens[child] for child in plan.tree.children(node)]
            ends = turn < 0 or place + 1 == len(path)
            taken = None if ends else plan.tree.tokens[path[place + 1]]
            units = _units(children, taken, size, words)
            probs[at] = np.array(units) / UNIT
            low, high = _interval(children, taken, units)
            coins[at] = between(low, high, UNIT, at_edges, _COIN, *words)
        left = [0 if token in children else share for token, share in enumerate(units)]
        last[b] = _on_a_share(left, at_edges, _LAST, case.seed, turn, b)
    what = "coins on the edges" if at_edges else "coins between the edges"
    return replace(beside, what=what, probs=probs, coins=coins, last=last)


def _units(
    children: Sequence[int], taken: int | None, size: int, words: Sequence[int]
) -> list[int]:
    """A law in units of 2**-12: children share what others leave, a power of two; some have nothing."""
    bits = address_hash(*words, _SHARE)
    rest = UNIT if not children else UNIT >> 1 + bits % 2
    if children and taken is not None and bits // 2 % 4 == 0:
        rest = 0  # all that there is is drafted
    others = [token for token in range(size) if token not in children]
    units = [0] * size
    for group, mass, must in ((children, UNIT - rest, taken), (others, rest, None)):
        for token, share in zip(group, shares(group, mass, must, words), strict=True):
            units[token] = share
    return units


def shares(group: Sequence[int], mass: int, must: int | None, words: Sequence[int]) -> list[int]:
    """`mass` divided among a group; one in three gets nothing, `must` something."""
    weights = [max(0, number - 2) for number in drawn(len(group), 9, *words, _SHARE, must or 0)]
    if must is not None:
        weights[group.index(must)] += 1
    if not any(weights) and weights:
        weights[-1] = 1
    shares = [mass * weight // max(1, sum(weights)) for weight in weights]
    if shares:
        largest = weights.index(max(weights))
        shares[largest] += mass - sum(shares)
    return shares


def drawn(count: int, below: int, *words: int) -> list[int]:
    """So many numbers from 0 to `below` - 1."""
    hashed = hash_words(address_hash(*words), np.arange(count, dtype=np.uint64))
    return [int(number) for number in (hashed % np.uint64(below)).tolist()]


def _interval(children: Sequence[int], taken: int | None, units: Sequence[int]) -> tuple[int, int]:
    """From which unit up to which the coin takes this child, or none of them."""
    edges = [0, *accumulate(units[token] for token in children)]
    if taken is None:
        return edges[-1], UNIT
    at = children.index(taken)
    return edges[at], edges[at + 1]


def between(low: int, high: int, whole: int, at_edges: bool, *words: int) -> float:
    """A number in [low, high) of `whole`: its lower end, or one in halves inside."""
    if at_edges:
        return low / whole
    inside = max(1, 2 * (high - low) - 1)
    return (2 * low + 1 + address_hash(*words) % inside) / (2 * whole)


def _on_a_share(weights: Sequence[int], at_edges: bool, *words: int) -> float:
    """A coin that draws one of the tokens that have any weight."""
    edges = list(accumulate(weights, initial=0))
    held = [token for token, weight in enumerate(weights) if weight]
    if at_edges and len(held) > 1:
        held = held[1:]  # below the first there is nobody on the other side of its edge
    token = held[address_hash(*words) % len(held)]
    return between(edges[token], edges[token + 1], edges[-1], at_edges, *words, 1)


def _arbitrary(beside: Sampled) -> Sampled:
    """Any float32 numbers, as a softmax leaves them; a child is likely, so that walks go down."""
    case, size = beside.case, beside.probs.shape[1]
    probs, coins, last = beside.probs.copy(), beside.coins.copy(), beside.last.copy()
    for b, plan in enumerate(beside.plans):
        for node, row in enumerate(plan.rows):
            words, at = (case.seed, _ANY, b, node), case.qo_indptr[b] + row
            weights = np.array(drawn(size, 1000, *words), np.float32) + 1
            weights[[plan.tree.tokens[child] for child in plan.tree.children(node)]] *= 8
            probs[at] = weights / weights.sum()
            coins[at] = any_coin(*words, _COIN)
        last[b] = any_coin(case.seed, _ANY, _LAST, b)
    return replace(
        beside, what="arbitrary numbers", probs=probs, coins=coins, last=last, exact=False
    )


def any_coin(*words: int) -> float:
    return (address_hash(*words) >> 40) / (1 << 24)
