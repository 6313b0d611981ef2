"""Chains that chance drafts: the law of what is emitted where a rule accepts or refuses them.

The drafts of a chain are drawn one by one, each by a law that may depend on those before it. What a
rule emits depends on them and on its own coins; it is right where, whatever was emitted so far, the
next token has the target's law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from treeproof.oracles.law import Coins, Distribution, Law, Tokens, Walk, draw
from treeproof.oracles.rules import Chain, Laws

After = Callable[[Tokens], Distribution]
"""What was emitted so far to the law of the next token."""
Rule = Callable[[Chain, Laws, Laws], Walk]
"""Chain, target and draft to a walk, as `rules.chain`."""


def drawn(rule: Rule, drafts: int, target: After, draft: After) -> Walk:
    """The walk of a rule on a chain of so many drafts, drawn by coins of their own.

    A draft is drawn when it is first looked at, or one below it is: drafts that nothing depends on
    need not be told apart.
    """

    def walk(coins: Coins) -> Tokens:
        chain = _Drawn(coins, drafts, draft)
        return rule(chain, _Along(chain, target), _Along(chain, draft))(coins)

    return walk


@dataclass(frozen=True)
class Unlike:
    """A run of tokens that what is emitted begins with, and with which probability."""

    run: Tokens
    found: Fraction
    right: Fraction


def unlike_the_target(law: Law, target: After, drafts: int, size: int) -> Unlike | None:
    """The first run, shorter ones first, that is begun with another probability than the target's:
    that of the same without its last token going on, times the target's of that token.

    None where there is none, and where nothing but such runs is emitted.
    """
    begun: dict[Tokens, Fraction] = {}
    onward: dict[Tokens, Fraction] = {}
    for length in range(drafts + 1, -1, -1):
        for run in product(range(size), repeat=length):
            following = (begun.get((*run, token), Fraction(0)) for token in range(size))
            onward[run] = sum(following, Fraction(0))
            begun[run] = law.get(run, Fraction(0)) + onward[run]
    for run in law:
        if not run or run not in begun:
            return Unlike(run, law[run], Fraction(0))
    for length in range(drafts + 1):
        for before in product(range(size), repeat=length):
            for token, share in enumerate(target(before)):
                found, right = begun[(*before, token)], share * onward[before]
                if found != right:
                    return Unlike((*before, token), found, right)
    return None


class _Drawn(Sequence[int]):
    """A chain that is its own tokens."""

    def __init__(self, coins: Coins, drafts: int, draft: After) -> None:
        self._coins, self._drafts, self._draft = coins, drafts, draft
        self._drawn: Tokens = ()

    @property
    def tokens(self) -> Sequence[int]:
        return self

    def __len__(self) -> int:
        return self._drafts + 1

    def children(self, node: int) -> Sequence[int]:
        return (node + 1,) if node < self._drafts else ()

    def __getitem__(self, node):  # type: ignore[no-untyped-def]
        return self.path(node)[-1] if node else 0

    def path(self, node: int) -> Tokens:
        """The drafts down to this node."""
        while len(self._drawn) < node:
            coin = "draft", len(self._drawn)
            self._drawn += (draw(self._coins, coin, self._draft(self._drawn)),)
        return self._drawn[:node]


class _Along:
    """What a chain has at hand of each node: the law after the drafts down to it."""

    def __init__(self, chain: _Drawn, after: After) -> None:
        self._chain, self._after = chain, after

    def __getitem__(self, node: int) -> Distribution:
        return self._after(self._chain.path(node))
