"""The exact law of what sampled acceptance emits: every cell of the coins, in rational arithmetic.

A rule is written once, as a walk that asks of each coin (uniform on [0, 1)) between which edges it
lies. The walk is then run for every combination of answers that coins can give; the share of a
combination is the product of the lengths that its coins are left with. Nothing is sampled. A coin
that a walk uses twice is one coin here too, so a rule that reuses a coin wrongly gets its true law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import prod
from typing import Protocol

from treeproof.contract.tree import CandidateTree

Tokens = tuple[int, ...]
Law = Mapping[Tokens, Fraction]
"""Probability of each run of emitted tokens: the accepted drafts, then the last one drawn."""
Distribution = Sequence[Fraction]
"""Probability of each token of the vocabulary."""


class Coins(Protocol):
    def pick(self, coin: Hashable, edges: Sequence[Fraction]) -> int:
        """How many of the ascending edges the coin of this name lies at or beyond."""
        ...


Walk = Callable[[Coins], Tokens]


def exact_law(walk: Walk) -> dict[Tokens, Fraction]:
    """The law of what a walk emits. It must be a function of its coins alone."""
    law: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    pending: list[tuple[int, ...]] = [()]
    while pending:
        cell = _Cell(pending.pop(), pending)
        law[walk(cell)] += cell.share
    return dict(law)


class _Cell:
    """Coins that fall as a script says, and after it into the first interval there is; the others
    are put off."""

    def __init__(self, script: tuple[int, ...], pending: list[tuple[int, ...]]) -> None:
        self._script = script
        self._pending = pending
        self._left: dict[Hashable, tuple[Fraction, Fraction]] = {}
        self._asked = 0

    def pick(self, coin: Hashable, edges: Sequence[Fraction]) -> int:
        start, high = self._left.get(coin, (Fraction(0), Fraction(1)))
        ways: list[tuple[int, Fraction, Fraction]] = []
        for index, edge in enumerate((*edges, high)):
            end = min(edge, high)
            if end > start:
                ways.append((index, start, end))
                start = end
        if self._asked == len(self._script):
            self._pending += [(*self._script, way) for way in range(1, len(ways))]
            self._script = (*self._script, 0)
        index, low, high = ways[self._script[self._asked]]
        self._asked += 1
        self._left[coin] = (low, high)
        return index

    @property
    def share(self) -> Fraction:
        return prod((high - low for low, high in self._left.values()), start=Fraction(1))


def target_only(
    tree: CandidateTree,
    target: Sequence[Distribution],
    threshold_single: Fraction = Fraction(1),
    threshold_acc: Fraction = Fraction(1),
) -> Walk:
    """SGLang's rule for a tree of deterministic proposals: no draft probabilities are asked.

    `target[v]` is the target model's law after prefix + path(v). One coin a node decides among its
    children, in their order: the first whose probability, summed up with those before it, the coin
    is below; a child without probability never is. Where there is none, a last coin draws from what
    the refused children leave. At thresholds of 1 what is emitted has the target's law exactly;
    below 1 it is biased on purpose.
    """

    def walk(coins: Coins) -> Tokens:
        node = 0
        emitted: list[int] = []
        while True:
            law, children = target[node], tree.children(node)
            reached = accumulate(law[tree.tokens[child]] for child in children)
            # At a threshold of 0, as towards it: any probability at all is enough.
            edges = [
                edge / threshold_acc if threshold_acc else Fraction(1 if edge else 0)
                for edge in reached
            ]
            for i, child in enumerate(children):
                share = law[tree.tokens[child]]
                if share > 0 and share >= threshold_single:
                    edges[i:] = [Fraction(1)] * (len(edges) - i)
            taken = coins.pick(node, edges)
            if taken == len(children):
                refused = {tree.tokens[child] for child in children}
                left = [Fraction(0) if t in refused else share for t, share in enumerate(law)]
                return (*emitted, draw(coins, "last", left))
            node = children[taken]
            emitted.append(tree.tokens[node])

    return walk


def draw(coins: Coins, coin: Hashable, weights: Distribution) -> int:
    """The token that a coin falls on, each as wide as its weight; the weights need not add up to 1.

    Raises ValueError where no token has any weight.
    """
    total = sum(weights, Fraction(0))
    if total <= 0:
        raise ValueError("weights are all 0: there is no token to draw")
    return coins.pick(coin, [edge / total for edge in accumulate(weights)])


def next_token(law: Law, before: Tokens, vocabulary: int) -> list[Fraction] | None:
    """The law of the token after `before`, where there is one; None where there never is.

    A rule is right where this is the target's law after prefix + `before`, for every `before`.
    """
    weights = [Fraction(0)] * vocabulary
    for tokens, share in law.items():
        if len(tokens) > len(before) and tokens[: len(before)] == before:
            weights[tokens[len(before)]] += share
    total = sum(weights, Fraction(0))
    return [weight / total for weight in weights] if total else None
