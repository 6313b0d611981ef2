"""Coins of a sampled round, which are given: they take the drafter's path as far as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeproof.contract.counter import address_hash
from treeproof.contract.sampling import CHAIN, Rule
from treeproof.properties.plans import Plan

Floats = npt.NDArray[np.float32]
_COIN, _PLACE, _LAST, _DRAFT = 707, 708, 709, 710  # address words of what is drawn
_UNITS = 1 << 16
_MOST = 1 - 2.0**-12
"""Of a coin: what is left above it is some mass to draw from, unless there is none at all."""
_LEAST = 2.0**-8
"""Of the interval that a coin is led into; where it is smaller the coin is any."""


@dataclass(frozen=True)
class Coins:
    """Of one request: `rows` (R,) decide about the children of each row, `last` draws the last token.
    `draft` (S, V), rule `chain` alone, are the laws that the drafts were drawn from."""

    rows: Floats
    last: float
    draft: Floats


def any_coins(rows: int, steps: int, vocab: int, seed: int) -> Coins:
    """Of a request that drafts nothing."""
    coins = [_any(seed, _COIN, row) for row in range(rows)]
    draft = np.full((steps, vocab), 1 / vocab, np.float32)
    return Coins(np.array(coins, np.float32), _any(seed, _LAST), draft)


def led_coins(
    rule: Rule, plan: Plan, end: int, laws: Sequence[Sequence[float]], like: Coins, seed: int
) -> Coins:
    """Coins that lead to node `end` of a plan and no further, well inside their intervals; all others
    are those of `like`. `laws[d]` is the target's law after the path's node at depth d."""
    rows, draft = like.rows.copy(), like.draft.copy()
    path = plan.tree.path(end)
    for depth, (node, law) in enumerate(zip(path, laws, strict=True)):
        children = plan.tree.children(node)
        if not children:
            break
        onward = path[depth + 1] if depth + 1 < len(path) else None
        shares = [law[plan.tree.tokens[child]] for child in children]
        if rule == CHAIN:
            token = plan.tree.tokens[children[0]]
            draft[depth] = _drafted_by(token, onward is None, law, (seed, _DRAFT, depth))
            taken = min(1.0, shares[0] / float(draft[depth, token]))
            low, high = (taken, 1.0) if onward is None else (0.0, taken)
        elif onward is None:
            low, high = sum(shares), 1.0
        else:
            low = sum(shares[: children.index(onward)])
            high = low + shares[children.index(onward)]
        if high - low >= _LEAST:
            place = (1 + 6 * _any(seed, _PLACE, depth)) / 8
            rows[plan.rows[node]] = min(low + place * (high - low), _MOST)
    return Coins(rows, like.last, draft)


def _drafted_by(token: int, refused: bool, law: Sequence[float], words: Sequence[int]) -> Floats:
    """A law that a draft was drawn from: where it is to be refused, it is likelier there than in the
    target's."""
    weights = np.array(
        [1 + address_hash(*words, other) % 100 for other in range(len(law))], np.float32
    )
    share = (1 + law[token]) / 2 if refused else 0.5
    weights[token] = 0
    made: Floats = weights / weights.sum() * np.float32(1 - share)
    made[token] = share
    return made


def _any(*words: int) -> float:
    return min(address_hash(*words) % _UNITS / _UNITS, _MOST)
