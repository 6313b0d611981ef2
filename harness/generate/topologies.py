"""Tree shapes from a few small numbers; a smaller `nodes` gives a part of the same tree or less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

Grower = Callable[[int, int, Random], list[int]]

# Only `Random.random` is used below: of its methods it alone is promised to stay as it is.


def _chain(nodes: int, knob: int, rng: Random) -> list[int]:
    return list(range(-1, nodes - 1))


def _star(nodes: int, knob: int, rng: Random) -> list[int]:
    return [-1] + [0] * (nodes - 1)


def _comb(nodes: int, knob: int, rng: Random) -> list[int]:
    """Every spine node has one tooth and the next spine node."""
    return [-1] + [(node - 1) // 2 * 2 for node in range(1, nodes)]


def _caterpillar(nodes: int, knob: int, rng: Random) -> list[int]:
    """A spine, and leaves on any of its nodes."""
    spine = max(1, nodes * knob // 10)
    return [
        node - 1 if node < spine else int(rng.random() * spine) if node else -1
        for node in range(nodes)
    ]


def _balanced(nodes: int, knob: int, rng: Random) -> list[int]:
    """Breadth-first filling with 2 to 4 children a node."""
    children = 2 + knob % 3
    return [-1] + [(node - 1) // children for node in range(1, nodes)]


def _fan(nodes: int, knob: int, rng: Random) -> list[int]:
    """A chain down to one inner node, and all others below that node."""
    inner = max(0, min(1 + knob // 2, nodes - 3))
    return [min(node - 1, inner) for node in range(nodes)]


def _unequal(nodes: int, knob: int, rng: Random) -> list[int]:
    """Branches of very different lengths, on the root and on random nodes in turn."""
    parents = [-1]
    lengths = (1, 4 + knob, 2, 8 + 2 * knob)
    branch = 0
    while len(parents) < nodes:
        tip = int(rng.random() * len(parents)) if branch % 3 == 2 else 0
        for _ in range(min(lengths[branch % len(lengths)], nodes - len(parents))):
            parents.append(tip)
            tip = len(parents) - 1
        branch += 1
    return parents


def _random(nodes: int, knob: int, rng: Random) -> list[int]:
    """Each node below one of the last few: 2 of them make long branches, all of them short ones."""
    back = (2, 4, 8, nodes)[knob % 4]
    return [-1] + [node - 1 - int(rng.random() * min(back, node)) for node in range(1, nodes)]


TOPOLOGIES: dict[str, Grower] = {
    "chain": _chain,
    "star": _star,
    "comb": _comb,
    "fan": _fan,
    "balanced": _balanced,
    "caterpillar": _caterpillar,
    "unequal-depths": _unequal,
    "random": _random,
}
"""Simple ones first: shrinking moves to the front."""

MAX_KNOB = 9

TOKEN_LAWS = ("numbered", "ranked", "vocabulary")

_VOCABULARY = 151_936  # Qwen 2 and 3


def grow(topology: str, nodes: int, knob: int, salt: int) -> tuple[int, ...]:
    """Parent of each of `nodes` nodes; `parents[0] == -1`.

    `knob` in 1 to MAX_KNOB sets what the shape leaves open (spine length, children a node, depth of
    the fan, branch lengths); `salt` decides what is random in it.
    """
    return tuple(TOPOLOGIES[topology](nodes, knob, Random(salt)))


def tokens_of(parents: Sequence[int], law: str, salt: int) -> tuple[int, ...]:
    """A token for each node, distinct among siblings.

    numbered: all distinct. ranked: the rank among the siblings, so that cousins share tokens.
    vocabulary: uniform over a large vocabulary.
    """
    if law == "numbered":
        return tuple(range(100, 100 + len(parents)))
    if law == "ranked":
        seen: Counter[int] = Counter()
        ranks = []
        for parent in parents:
            ranks.append(10 + seen[parent])
            seen[parent] += 1
        return tuple(ranks)
    rng = Random(salt)
    tokens: list[int] = []
    taken: set[tuple[int, int]] = set()
    for parent in parents:
        token = int(rng.random() * _VOCABULARY)
        while (parent, token) in taken:
            token += 1
        taken.add((parent, token))
        tokens.append(token)
    return tuple(tokens)
