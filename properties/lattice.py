"""The exact law of a sampling kernel on small trees: one request for each cell of its coins.

Coins of the nodes and the last one are laid on the middles of equal cells: probabilities are such that the
edges of a right rule lie between cells and on none of the middles. What all cells emit, counted, is the
law; it has to be that of plain decoding. Of a chain there is such a set of requests for each drafts that
may be drawn, and each counts as often as its drafts are. Coins of leaves, which no right rule asks, vary
with the cell, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from treeproof.contract.failure import Failure
from treeproof.contract.sampling import CHAIN, TARGET_ONLY, Rule
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.autoregressive import until_it_leaves
from treeproof.oracles.drawn import drawn, unlike_the_target
from treeproof.oracles.law import Distribution, Law, Tokens, exact_law
from treeproof.oracles.rules import chain
from treeproof.properties.sampled import Floats

SIZE = 3
"""Tokens of the vocabulary."""
CELLS = 12
"""Of each coin on a tree, where there is time: laws are in quarters, and so edges are halves, thirds and
quarters. On the smallest trees there are no thirds, and `FEW` are enough."""
FEW = 4
"""Of each coin of a chain: quotients p / q, shares of residuals and the last laws are halves, so half of
these are enough where there is no time for more."""
_QUARTERS = ((1, 2, 1), (1, 1, 2), (2, 1, 1))
"""The law after each node, in quarters; over again after the third."""
_HALVES = ((2, 2, 0), (0, 2, 2), (2, 0, 2))
"""The law after a whole chain, in quarters."""
_PAIRS = (((2, 4, 2), (4, 3, 1)), ((1, 4, 3), (2, 4, 2)), ((3, 3, 2), (2, 2, 4)))
"""Laws of target and draft, in eighths; which one, the drafts before say."""


@dataclass(frozen=True)
class Lattice:
    """Requests of one shape, node i in row i; `shares` (requests,) add up to 1: how much each counts.

    `tokens` (requests, nodes), `probs` (requests, nodes, 3), `coins` (requests, nodes), `last`
    (requests,); `draft` (requests, nodes - 1, 3), rule `chain` alone.
    """

    rule: Rule
    parents: tuple[int, ...]
    tokens: npt.NDArray[np.int64]
    probs: Floats
    coins: Floats
    last: Floats
    shares: tuple[Fraction, ...]
    draft: Floats | None = None

    @property
    def tree(self) -> CandidateTree:
        """That of the first request; of a chain they differ in their tokens."""
        return CandidateTree(tuple(self.tokens[0].tolist()), self.parents)

    @property
    def wanted(self) -> Law:
        return right_law(self.rule, self.parents, self.tree.tokens)


@lru_cache(maxsize=4)
def lattices(rule: Rule, complete: bool) -> tuple[Lattice, ...]:
    """The smallest first. A tree with two nodes inside takes 1,728 requests, a chain of three drafts
    6,912: these are for who has time for all there is."""
    if rule == CHAIN:
        few = FEW if complete else FEW // 2
        chains = [(1, FEW), (2, few), *([(3, few)] if complete else ())]
        return tuple(_chain(*one) for one in chains)
    trees = [
        CandidateTree((0,), (-1,)),
        CandidateTree((0, 1), (-1, 0)),
        CandidateTree((0, 1, 0), (-1, 0, 0)),
    ]
    larger = [
        CandidateTree((0, 1, 0), (-1, 0, 1)),
        CandidateTree((0, 1, 0, 2), (-1, 0, 0, 1)),
    ]
    if not complete:
        return tuple(_lattice(tree, FEW) for tree in trees)
    return tuple(_lattice(tree, CELLS) for tree in (*trees, *larger))


def _lattice(tree: CandidateTree, cells: int) -> Lattice:
    coins, last = _cells(tree, cells)
    laws = np.array(_laws(tree), np.float32)
    requests = len(last)
    return Lattice(
        TARGET_ONLY,
        tree.parents,
        np.tile(np.array(tree.tokens, np.int64), (requests, 1)),
        np.tile(laws, (requests, 1, 1)),
        coins,
        last,
        (Fraction(1, requests),) * requests,
    )


def _laws(tree: CandidateTree) -> list[Distribution]:
    chosen = (_QUARTERS[node % len(_QUARTERS)] for node in range(len(tree)))
    return [[Fraction(share, 4) for share in law] for law in chosen]


def _chain(drafts: int, cells: int) -> Lattice:
    parents = tuple(range(-1, drafts))
    coins, last = _cells(CandidateTree((0,) * (drafts + 1), parents), cells)
    chosen = list(product(range(SIZE), repeat=drafts))
    tokens, probs, asked, shares = [], [], [], []
    for run in chosen:
        before = [run[:depth] for depth in range(drafts + 1)]
        tokens.append((0, *run))
        probs.append([_target_after(drafts, one) for one in before])
        asked.append([_draft_after(one) for one in before[:-1]])
        drawn = prod(
            (_draft_after(one)[token] for one, token in zip(before, run, strict=False)),
            start=Fraction(1),
        )
        shares += [drawn / len(last)] * len(last)
    return Lattice(
        CHAIN,
        parents,
        np.repeat(np.array(tokens, np.int64), len(last), axis=0),
        np.repeat(np.array(probs, np.float32), len(last), axis=0),
        np.tile(coins, (len(chosen), 1)),
        np.tile(last, len(chosen)),
        tuple(shares),
        np.repeat(np.array(asked, np.float32), len(last), axis=0),
    )


def _target_after(drafts: int, run: Tokens) -> Distribution:
    if len(run) == drafts:
        return [Fraction(share, 4) for share in _HALVES[sum(run) % len(_HALVES)]]
    return [Fraction(share, 8) for share in _pair_after(run)[0]]


def _draft_after(run: Tokens) -> Distribution:
    return [Fraction(share, 8) for share in _pair_after(run)[1]]


def _pair_after(run: Tokens) -> tuple[Sequence[int], Sequence[int]]:
    return _PAIRS[(len(run) + sum(run)) % len(_PAIRS)]


def _cells(tree: CandidateTree, cells: int) -> tuple[Floats, Floats]:
    """(requests, nodes) and (requests,): every choice of cells of the coins inside and of the last."""
    inner = [node for node in range(len(tree)) if tree.children(node)]
    chosen = np.array(list(product(range(cells), repeat=len(inner) + 1)))
    middles = ((chosen + 0.5) / cells).astype(np.float32)
    coins = np.empty((len(chosen), len(tree)), np.float32)
    for node in range(len(tree)):
        turned = (chosen.sum(1) * (node + 5) + chosen[:, 0]) % cells
        coins[:, node] = (turned + 0.5) / cells
    coins[:, inner] = middles[:, :-1]
    return coins, middles[:, -1].copy()


def law_of(given: Lattice, runs: Sequence[Tokens]) -> Law:
    """The law of what each request emitted."""
    law: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for run, share in zip(runs, given.shares, strict=True):
        law[run] += share
    return law


@lru_cache(maxsize=16)
def right_law(rule: Rule, parents: tuple[int, ...], tokens: Tokens) -> Law:
    """The law that a right rule has. Of a chain the next token alone has to have that of the target: how
    many drafts are accepted on the way to it is the rule's."""
    if rule == CHAIN:
        drafts = len(parents) - 1
        return exact_law(drawn(chain, drafts, partial(_target_after, drafts), _draft_after))
    tree = CandidateTree(tokens, parents)
    return until_it_leaves(tree, _laws(tree))


def judge_law(given: Lattice, law: Law) -> list[Failure]:
    """The law of a backend against that of plain decoding; a failure for the first difference."""
    requests = len(given.shares)
    if given.rule == CHAIN:
        return _unlike_chain(given, law)
    wanted = given.wanted
    for run in sorted({*wanted, *law}):
        found, true = law.get(run, Fraction(0)), wanted.get(run, Fraction(0))
        if found != true:
            tree = f"parents {list(given.parents)} and tokens {list(given.tree.tokens)}"
            return [
                _failure(
                    found, true, f"on the tree of {tree}, over all {requests} cells of the coins, "
                    f"{list(run)} is emitted"
                )
            ]  # fmt: skip
    return []


def _unlike_chain(given: Lattice, law: Law) -> list[Failure]:
    drafts = len(given.parents) - 1
    unlike = unlike_the_target(law, partial(_target_after, drafts), drafts, SIZE)
    if unlike is None:
        return []
    return [
        _failure(
            unlike.found, unlike.right, f"where a chain of {drafts} draft{'s' * (drafts > 1)} is drawn "
            f"by the draft's law, over all {len(given.shares)} cells of drafts and coins, what is "
            f"emitted begins with {list(unlike.run)}"
        )
    ]  # fmt: skip


def _failure(found: Fraction, true: Fraction, what: str) -> Failure:
    return Failure(
        identity="traversal", kind="wrong-law", evidence="measured", stage="sample",
        expected=str(true), actual=str(found),
        message=f"{what} with probability {found}, expected {true} as by plain decoding",
    )  # fmt: skip
