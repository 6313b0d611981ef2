"""The exact law of a sampling kernel on small trees: one request for each cell of its coins.

Coins of the nodes and the last one are laid on the middles of equal cells, twelve each: probabilities are
quarters, so the edges of any rule that compares a coin with sums of them, or with their quotients, lie
between cells and on none of the middles. What all cells emit, counted, is the law; it has to be that of
plain decoding. Coins of leaves, which no right rule asks, vary with the cell, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from treeproof.contract.failure import Failure
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.autoregressive import until_it_leaves
from treeproof.oracles.law import Tokens
from treeproof.properties.sampled import Floats

CELLS = 12
_QUARTERS = ((2, 1, 1), (1, 1, 2), (1, 2, 1))
"""The law after each node, in quarters, of a vocabulary of three; over again after the third."""


@dataclass(frozen=True)
class Lattice:
    """One tree in as many requests as there are cells: `coins` (cells, nodes), `last` (cells,)."""

    tree: CandidateTree
    coins: Floats
    last: Floats

    @property
    def laws(self) -> list[tuple[Fraction, ...]]:
        return [
            tuple(Fraction(share, 4) for share in _QUARTERS[node % len(_QUARTERS)])
            for node in range(len(self.tree))
        ]

    @property
    def probs(self) -> Floats:
        """(nodes, 3)."""
        return np.array([[float(share) for share in law] for law in self.laws], np.float32)


def lattices(complete: bool) -> list[Lattice]:
    """The smallest trees first; a chain of three takes 1,728 cells."""
    trees = [
        CandidateTree((0,), (-1,)),
        CandidateTree((0, 1), (-1, 0)),
        CandidateTree((0, 1, 0), (-1, 0, 0)),
    ]
    return [_lattice(tree) for tree in (*trees, *([_CHAIN, _BOTH] if complete else ()))]


_CHAIN = CandidateTree((0, 1, 0), (-1, 0, 1))
_BOTH = CandidateTree((0, 1, 0, 2), (-1, 0, 0, 1))


def _lattice(tree: CandidateTree) -> Lattice:
    inner = [node for node in range(len(tree)) if tree.children(node)]
    cells = np.array(list(product(range(CELLS), repeat=len(inner) + 1)))
    middles = ((cells + 0.5) / CELLS).astype(np.float32)
    coins = np.empty((len(cells), len(tree)), np.float32)
    for node in range(len(tree)):
        turned = (cells.sum(1) * (node + 5) + cells[:, 0]) % CELLS
        coins[:, node] = (turned + 0.5) / CELLS
    coins[:, inner] = middles[:, :-1]
    return Lattice(tree, coins, middles[:, -1].copy())


def judge_law(given: Lattice, runs: Sequence[Tokens]) -> list[Failure]:
    """What each cell emitted against the law of plain decoding; a failure for the first difference."""
    counts = Counter(runs)
    wanted = until_it_leaves(given.tree, given.laws)
    for run in sorted({*wanted, *counts}):
        found, true = Fraction(counts[run], len(runs)), wanted.get(run, Fraction(0))
        if found != true:
            tree = f"parents {list(given.tree.parents)} and tokens {list(given.tree.tokens)}"
            return [
                Failure(
                    identity="traversal", kind="wrong-law", evidence="measured", stage="sample",
                    expected=str(true), actual=str(found),
                    message=f"on the tree of {tree}, over all {len(runs)} cells of the coins, "
                    f"{list(run)} is emitted with probability {found}, expected {true} as by plain "
                    "decoding",
                )
            ]  # fmt: skip
    return []
