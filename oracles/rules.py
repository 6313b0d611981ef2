"""Three more rules of acceptance, each a walk like those of `law`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Protocol

import numpy as np

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.law import Coins, Distribution, Tokens, Walk, draw


def greedy(tree: CandidateTree, target: Sequence[Distribution]) -> Walk:
    """The likeliest token each time, the first by number where several are; no coin is asked."""

    def walk(coins: Coins) -> Tokens:
        node, emitted = 0, [best(target[0])]
        while True:
            onward = [c for c in tree.children(node) if tree.tokens[c] == emitted[-1]]
            if not onward:
                return tuple(emitted)
            node = onward[0]
            emitted.append(best(target[node]))

    return walk


def best(law: Distribution) -> int:
    """The first token of the largest probability."""
    return max(range(len(law)), key=lambda token: (law[token], -token))


class Chain(Protocol):
    """A tree no node of which has two children: node i + 1 is the child of node i."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def children(self, node: int) -> Sequence[int]: ...

    def __len__(self) -> int: ...


class Laws(Protocol):
    """Of each node, or depth, a distribution."""

    def __getitem__(self, node: int, /) -> Distribution: ...


def chain(tree: Chain, target: Laws, draft: Laws) -> Walk:
    """Rejection sampling: `draft[d]` is the law that the draft at depth d + 1 was drawn from.

    No node has two children. What a draft is accepted with, min(1, p / q), and what is drawn in its
    place, by max(0, p - q), add up to p, where it was drawn from q.
    """

    def walk(coins: Coins) -> Tokens:
        emitted: list[int] = []
        for node in range(len(tree)):
            law = target[node]
            if not tree.children(node):
                return (*emitted, draw(coins, "last", law))
            drafted = draft[node]
            token = tree.tokens[node + 1]
            asked = drafted[token]
            edge = min(law[token] / asked, Fraction(1)) if 0 < asked <= 1 else Fraction(0)
            if coins.pick(node, [edge]) == 0:
                emitted.append(token)
                continue
            left = [max(p - q, Fraction(0)) for p, q in zip(law, drafted, strict=True)]
            return (*emitted, draw(coins, "last", left))
        raise AssertionError("a chain ends in a leaf")

    return walk


def typical_ends(
    tree: CandidateTree,
    target: Sequence[Sequence[float]],
    epsilon: float,
    delta: float,
    doubt: float = 0.0,
) -> frozenset[int]:
    """The nodes that typical acceptance may end on, where numbers are known but for `doubt` of them.

    A child is admissible where its probability is above min(epsilon, delta * exp(-H)). Of the longest
    paths of such, the likeliest is taken: one node, unless `doubt` leaves several. An epsilon that is a
    float32 is in no doubt: its edge is hit exactly.
    """
    found: set[int] = set()
    peaks = [delta * math.exp(-_entropy(law)) for law in target]
    rounded = epsilon if not doubt else float(np.float32(epsilon))
    for lean, most in product((-doubt, 0.0, doubt), {epsilon, rounded}):
        likelihood = {0: 1.0}
        for node in range(1, len(tree)):
            above = tree.parents[node]
            if above in likelihood:
                share = target[above][tree.tokens[node]]
                if share > min(most, peaks[above] * (1 + lean)):
                    likelihood[node] = likelihood[above] * share
        deepest = max(tree.depth[node] for node in likelihood)
        ends = {n: p for n, p in likelihood.items() if tree.depth[n] == deepest}
        found |= {n for n, p in ends.items() if p >= max(ends.values()) * (1 - doubt)}
    return frozenset(found)


def typical_ends_in_doubt(
    tree: CandidateTree,
    target: Sequence[Sequence[float]],
    epsilon: float,
    delta: float,
    off: float,
) -> frozenset[int]:
    """The nodes that it may end on where each logit behind `target` is off by `off` at most, each in a way of
    its own.

    A share is then off by a factor of exp(2 off) at most, its logarithm by 2 off, so an entropy of laws over V
    tokens by (exp(2 off) - 1) * log(V) + 2 off * exp(2 off).
    """
    grown = math.exp(2 * off)
    by_entropy = math.exp((grown - 1) * math.log(max(2, len(target[0]))) + 2 * off * grown)
    certain, possible = {0: 1.0}, {0: 1.0}
    for node in range(1, len(tree)):
        above = tree.parents[node]
        share = target[above][tree.tokens[node]]
        peak = delta * math.exp(-_entropy(target[above]))
        if above in possible and share * grown > min(epsilon, peak / by_entropy):
            possible[node] = possible[above] * share
            if above in certain and share / grown > min(epsilon, peak * by_entropy):
                certain[node] = possible[node]
    least = max(tree.depth[node] for node in certain)
    best: dict[int, float] = {}
    for node, share in certain.items():
        best[tree.depth[node]] = max(share, best.get(tree.depth[node], 0.0))
    # Whichever is in no doubt, and likelier beyond doubt, is taken before another of its depth.
    return frozenset(
        node
        for node, share in possible.items()
        if tree.depth[node] >= least
        and share * grown ** (2 * tree.depth[node]) >= best.get(tree.depth[node], 0.0)
    )


def _entropy(law: Sequence[float]) -> float:
    return -sum(share * math.log(share) for share in law if share > 0)


def typical(tree: CandidateTree, target: Sequence[Distribution], end: int) -> Walk:
    """What is emitted where acceptance ends on this node: its path, then a token by its law."""

    def walk(coins: Coins) -> Tokens:
        path = [tree.tokens[node] for node in tree.path(end)[1:]]
        return (*path, draw(coins, "last", target[end]))

    return walk
