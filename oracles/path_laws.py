"""The law after each node of a tree, by plain decoding of the path to it alone; made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import overload

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.continuation import Continuation


class Laws(Sequence[Sequence[Fraction]]):
    """`laws[node]` (vocabulary,) as exact rationals of float64 numbers, which add up to 1 but for their
    rounding. Tokens below the root stand from index `first` on."""

    def __init__(self, before: Continuation, first: int, tree: CandidateTree) -> None:
        self._tree = tree

        @cache
        def law(node: int) -> list[Fraction]:
            path = [tree.tokens[on] for on in tree.path(node)[1:]]
            logits = before.with_tokens(first, path).logits(first + len(path) - 1)
            return [Fraction(share) for share in logits.softmax(0).tolist()]

        self._law = law

    def __len__(self) -> int:
        return len(self._tree)

    @overload
    def __getitem__(self, node: int) -> Sequence[Fraction]: ...
    @overload
    def __getitem__(self, node: slice) -> Sequence[Sequence[Fraction]]: ...
    def __getitem__(self, node: int | slice) -> Sequence[Fraction] | Sequence[Sequence[Fraction]]:
        if isinstance(node, slice):
            return [self._law(one) for one in range(*node.indices(len(self)))]
        return self._law(node)
