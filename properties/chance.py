"""Draws of a sampling kernel whose random generator is its own: counted, against their exact law.

Whether coins are compared rightly is for given coins to show. Here it is how the generator is wired: that
each coin is drawn anew for each row, request and call. So there are five tests, by chi-square: whether what
single requests emit has the law, and whether pairs are independent: requests beside each other, and one
request in two calls after each other, either counted from the first and from the second one.

A right generator fails one of `TESTS_A_RUN` tests with probability `ALPHA_A_RUN` at most (Bonferroni), but
for what counts in whole numbers differ from the limit that chi-square is: the rarest pair is expected
fifty times. Where the probability of some event is off by `EFFECT`, that of a run or by dependence that of
a pair, a test fails with probability `POWER` at least; the number of draws follows from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch

from treeproof.contract.failure import Failure
from treeproof.contract.sampling import CHAIN, TARGET_ONLY, TYPICAL, Rule
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.law import Tokens
from treeproof.properties.sampled import Floats

ALPHA_A_RUN = 1e-6
TESTS_A_RUN = 1 << 15
"""Five a rule and check, of six thousand that come to them."""
ALPHA = ALPHA_A_RUN / TESTS_A_RUN
EFFECT = 0.1
POWER = 0.999

TREE = CandidateTree((0, 0, 1), (-1, 0, 1))
"""Two drafts, one below the other."""
_LAWS = ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.0, 0.5, 0.5))
_LAW = {(2,): 0.25, (1,): 0.25, (0, 0): 0.125, (0, 2): 0.125, (0, 1, 1): 0.125, (0, 1, 2): 0.125}
"""Each draft is accepted with a half; what is drawn in its place is either of the other two tokens."""

T = TypeVar("T")


@dataclass(frozen=True)
class Chances:
    """One request on `TREE`, and the law of what it emits: `probs` (3, 3), `draft` (2, 3)."""

    rule: Rule
    probs: Floats
    draft: Floats | None
    law: Mapping[Tokens, float]


def chances(rule: Rule) -> Chances | None:
    """None for a rule in which nothing is left to chance."""
    probs = np.array(_LAWS, np.float32)
    if rule == TARGET_ONLY:
        return Chances(rule, probs, None, _LAW)
    if rule == CHAIN:
        # Drafts that could be no others are accepted with p / 1, and leave p without themselves.
        certain = np.eye(3, dtype=np.float32)[list(TREE.tokens[1:])]
        return Chances(rule, probs, certain, _LAW)
    if rule == TYPICAL:
        return Chances(rule, probs, None, {(0, 1, 1): 0.5, (0, 1, 2): 0.5})
    return None


def survival(statistic: float, freedom: int) -> float:
    """The probability that chi-square with so many degrees of freedom is above the statistic."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def power(draws: int, freedom: int, effect: float = EFFECT, alpha: float = ALPHA) -> float:
    """The probability at least with which a law that is off by `effect` fails a test of level alpha.

    Chi-square is then non-central, by draws * sum((q - p)**2 / p): by Cauchy and Schwarz
    4 * draws * effect**2 at least, where effect is half the sum of |q - p|.
    """
    shift, half = 2 * draws * effect**2, critical(freedom, alpha) / 2
    # A mixture of central ones, weighted as Poisson has it; further than this it has nothing left.
    j = torch.arange(int(shift + 40 * math.sqrt(shift + 1) + 40), dtype=torch.float64)
    weights = torch.exp(j * math.log(shift) - shift - torch.lgamma(j + 1))
    above = torch.special.gammaincc(freedom / 2 + j, torch.full_like(j, half))
    return float((weights * above).sum())


@lru_cache(maxsize=64)
def draws_for(freedom: int, effect: float = EFFECT, alpha: float = ALPHA) -> int:
    """The fewest draws by which a test has `POWER`."""
    few, enough = 0, 1
    while power(enough, freedom, effect, alpha) < POWER:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        if power(middle, freedom, effect, alpha) < POWER:
            few = middle
        else:
            enough = middle
    return enough


@lru_cache(maxsize=64)
def critical(freedom: int, alpha: float) -> float:
    """The statistic that chance exceeds with probability alpha."""
    low, high = 0.0, 10.0 * (freedom - 2 * math.log(alpha))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, freedom) > alpha else (low, middle)
    return high


def calls_for(law: Mapping[Tokens, float], requests: int) -> int:
    """How often so many requests are sampled together: an odd number of times."""
    singles = draws_for(len(law) - 1) / requests
    # The fewest pairs are those from the second request, or call, on.
    pairs = draws_for((len(law) - 1) ** 2)
    beside, again = pairs / ((requests - 1) // 2), 2 * pairs / requests
    return 2 * math.ceil(max(singles, beside, again) / 2) + 1


def judge_chance(law: Mapping[Tokens, float], calls: Sequence[Sequence[Tokens]]) -> list[Failure]:
    """What each request of each call emitted; `law` is the same for all of them."""
    found: list[Failure] = []
    for at in (0, 1):
        beside = chain.from_iterable(_pairs(call[at:]) for call in calls)
        found += _dependent(beside, "two requests beside each other emit")
        again = chain.from_iterable(zip(*pair, strict=True) for pair in _pairs(calls[at:]))
        found += _dependent(again, "one request emits in two calls after each other")
    seen = Counter(chain.from_iterable(calls))
    due = {run: seen.total() * share for run, share in law.items()}
    return found + _unlike(seen, due, len(law) - 1, "wrong-law", "a request emits")


def _pairs(values: Sequence[T]) -> Iterable[tuple[T, T]]:
    return zip(values[::2], values[1::2], strict=False)


def _dependent(pairs: Iterable[tuple[Tokens, Tokens]], what: str) -> list[Failure]:
    """Against two draws by the frequencies that are seen, whatever their law."""
    seen = Counter(pairs)
    ones: Counter[Tokens] = Counter()
    others: Counter[Tokens] = Counter()
    for (one, other), times in seen.items():
        ones[one] += times
        others[other] += times
    due = {
        (one, other): ones[one] * others[other] / seen.total() for one in ones for other in others
    }
    freedom = (len(ones) - 1) * (len(others) - 1)
    return _unlike(seen, due, freedom, "dependent-draws", what) if freedom else []


def _unlike(
    seen: Counter[Any], due: Mapping[Any, float], freedom: int, kind: str, what: str
) -> list[Failure]:
    off = {cell: (seen[cell] - often) ** 2 / often for cell, often in due.items()}
    strange = next((cell for cell in seen if cell not in due), None)
    statistic = sum(off.values())
    if strange is None and survival(statistic, freedom) >= ALPHA:
        return []
    cell = max(off, key=lambda one: off[one]) if strange is None else strange
    often = due.get(cell, 0.0)
    return [
        Failure(
            identity="traversal", kind=kind, evidence="measured", stage="sample",
            expected=f"{often:.0f}", actual=str(seen[cell]),
            message=f"by a generator of its own {what} {_shown(cell)} {seen[cell]} times in "
            f"{seen.total()}, expected some {often:.0f}: chi-square is {statistic:.0f} with {freedom} "
            f"degrees of freedom, and by chance above {critical(freedom, ALPHA):.0f} with probability "
            f"{ALPHA:.0e}",
        )
    ]  # fmt: skip


def _shown(cell: Any) -> str:
    """A run of tokens, or two."""
    runs = cell if cell and isinstance(cell[0], tuple) else (cell,)
    return " and ".join(str(list(run)) for run in runs)
