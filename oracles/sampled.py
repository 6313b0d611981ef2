"""What sampled acceptance may emit for given coins: the walks of `law`, with the coins laid down.

Numbers are exact rationals. A kernel compares in float32, so where a coin lies closer to an edge than
its rounding reaches, either answer is right: a tie. How close that is, the caller says for each
comparison; 0 is an edge that every float computation has exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction

from treeproof.oracles.law import Tokens, Walk

Slack = Callable[[Hashable, Sequence[Fraction]], Fraction]
"""Coin and ascending edges to how far each edge may be off, as a share of it."""


def exactly(coin: Hashable, edges: Sequence[Fraction]) -> Fraction:
    """No edge is off at all."""
    return Fraction(0)


def outcomes(
    walk: Walk, values: Mapping[Hashable, Fraction], slack: Slack = exactly
) -> frozenset[Tokens]:
    """Every run of tokens that a right computation may emit; one, where no coin is near an edge."""
    found: set[Tokens] = set()
    pending: list[tuple[int, ...]] = [()]
    while pending:
        found.add(walk(_Laid(values, slack, pending.pop(), pending)))
    return frozenset(found)


class _Laid:
    """Coins of these values; where one is in doubt, what a script says, and after it the first
    answer there is; the others are put off."""

    def __init__(
        self,
        values: Mapping[Hashable, Fraction],
        slack: Slack,
        script: tuple[int, ...],
        pending: list[tuple[int, ...]],
    ) -> None:
        self._values, self._slack = values, slack
        self._script, self._pending = script, pending
        self._doubts = 0

    def pick(self, coin: Hashable, edges: Sequence[Fraction]) -> int:
        value, share = self._values[coin], self._slack(coin, edges)
        answers = [bisect_right(edges, value)]
        if share:
            near = {edge for edge in edges if 0 < edge < 1 and abs(value - edge) <= share * edge}
            answers = sorted(
                {answers[0]}
                | {bisect_right(edges, edge) for edge in near}
                | {bisect_right(edges, edge) - edges.count(edge) for edge in near}
            )
        if len(answers) == 1:
            return answers[0]
        if self._doubts == len(self._script):
            self._pending += [(*self._script, answer) for answer in answers[1:]]
            self._script = (*self._script, answers[0])
        self._doubts += 1
        return self._script[self._doubts - 1]
