"""What plain decoding emits, until it leaves a tree: the law that sampled acceptance must have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product
from math import prod

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.law import Distribution, Tokens


def until_it_leaves(tree: CandidateTree, target: Sequence[Distribution]) -> dict[Tokens, Fraction]:
    """The share of each run of tokens that follows a path of the tree and then leaves it.

    `target[v]` is the law of the token after prefix + path(v). Whoever decodes token by token emits,
    after the root, the tokens along some path and then one that no child of its end carries: with
    the probability of all of them. Those of probability 0 are left out.
    """
    found: dict[Tokens, Fraction] = {}
    for node in range(len(tree)):
        path = tree.path(node)
        before = tuple(tree.tokens[v] for v in path[1:])
        reached = prod(
            (target[tree.parents[v]][tree.tokens[v]] for v in path[1:]), start=Fraction(1)
        )
        followed = {tree.tokens[child] for child in tree.children(node)}
        for token, share in enumerate(target[node]):
            if token not in followed and reached * share > 0:
                found[(*before, token)] = reached * share
    return found


def shapes(most: int) -> Iterator[tuple[int, ...]]:
    """Parents of every rooted tree of up to `most` nodes, siblings in no order, smaller ones first."""
    level: dict[tuple[object, ...], tuple[int, ...]] = {(): (-1,)}
    for _ in range(most):
        yield from level.values()
        grown: dict[tuple[object, ...], tuple[int, ...]] = {}
        for parents in level.values():
            for above in range(len(parents)):
                longer = (*parents, above)
                grown.setdefault(_canonical(longer, 0), longer)
        level = grown


def _canonical(parents: Sequence[int], node: int) -> tuple[object, ...]:
    below = [child for child, parent in enumerate(parents) if parent == node]
    return tuple(sorted((_canonical(parents, child) for child in below), key=repr))


def assignments(parents: Sequence[int], size: int) -> Iterator[CandidateTree]:
    """The tree with every choice of tokens out of `size`, siblings distinct, up to renaming: tokens
    are numbered as they come, the root's apart, which no rule looks at."""
    below = [
        [c for c, parent in enumerate(parents) if parent == node] for node in range(len(parents))
    ]
    for choice in product(*(permutations(range(size), len(brood)) for brood in below)):
        tokens = [0] * len(parents)
        for brood, chosen in zip(below, choice, strict=True):
            for child, token in zip(brood, chosen, strict=True):
                tokens[child] = token
        first = list(dict.fromkeys(tokens[1:]))
        if first == sorted(first) and first == list(range(len(first))):
            yield CandidateTree(tuple(tokens), tuple(parents))
