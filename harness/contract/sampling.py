"""What the stage `sample` is given beside the links: probabilities, coins and a rule.

torch is not imported here. Symbols as in `contract.inputs`; V is the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Rule = Literal["target-only", "chain", "typical", "greedy"]
TARGET_ONLY: Rule = "target-only"
CHAIN: Rule = "chain"
TYPICAL: Rule = "typical"
GREEDY: Rule = "greedy"
RULES: tuple[Rule, ...] = (TARGET_ONLY, CHAIN, TYPICAL, GREEDY)

_MASS = 1e-3
"""How far the sum of a row may be from 1: a softmax over 2**18 tokens in float32 is well inside."""


@dataclass(frozen=True)
class Sampling:
    """Everything that chance decides in one verify step, given: coins, or what they are drawn from.

    `target-only`: the coin of the last accepted row decides among its children, in link order. With
    `acc` the sum of the target's probabilities of the children up to and with this one, a child of
    token x is accepted where p(x) > 0 and (coin < acc / threshold_acc or p(x) >= threshold_single).
    Where none is, the last token is drawn from the target's law without the children refused.

    `chain`: no row has two children. With q the law that the draft was drawn from, it is accepted
    where 0 < q(x) and coin * q(x) < p(x). Where it is not, the last token is drawn from
    max(0, p - q); after the last row, from p.

    `typical`: a child is admissible where p(x) > min(epsilon, delta * exp(-H)), H being the entropy
    (natural log) of p, and its parent is the root or admissible. The longest path of such is
    accepted, among equally long ones the likeliest by the product of its p(x). The last token is drawn from p.

    `greedy`: a child is accepted where it holds the likeliest token, the first by number where several
    are likeliest; that after the last accepted row is emitted. No coin is asked.

    A draw takes the first token, by number, whose share of the mass and of those before it is above
    the final coin; so one without mass is never drawn.
    """

    rule: Rule
    target_probs: Tensor
    """(T, V) float32: the target's law after each row; each line adds up to 1. Free on padding."""
    coins: Tensor
    """(T,) float32 in [0, 1): a row's coin decides about its children. Free on padding."""
    final_coins: Tensor
    """(B,) float32 in [0, 1): draws the last token of each request."""
    draft_probs: Tensor | None = None
    """(B, S, V) float32, rule `chain` alone: the law that the draft below row j was drawn from."""
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    """Of rule `target-only`, in [0, 1]; both 1: what is emitted has the target's law."""
    epsilon: float = 0.09
    delta: float = 0.3
    """Of rule `typical`, in (0, 1]."""
    seed: int | None = None
    """For a backend that draws its own coins (`Capabilities.own_coins`), and for no other: what its generator
    is seeded with in this call. Coins are NaN then."""

    def refusal(self, rows: Tensor) -> str | None:
        """What is wrong with these numbers: field, row, and what is accepted. None: nothing is.

        `rows` (n,) int64: the rows that are looked at, all but padding.
        """
        if self.rule not in RULES:
            return f"rule is {self.rule!r}: accepted are {', '.join(RULES)}"
        for name in ("threshold_single", "threshold_acc", "epsilon", "delta"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                return f"{name} is {value}: accepted are 0 to 1"
        wrong = _bad_laws("target_probs", self.target_probs, rows.tolist())
        if self.seed is None:
            wrong = (
                _bad_coins("coins", self.coins, rows.tolist())
                or _bad_coins("final_coins", self.final_coins, range(len(self.final_coins)))
                or wrong
            )
        if wrong is None and self.rule == CHAIN:
            if self.draft_probs is None:
                return "draft_probs is None: rule chain needs (requests, steps, vocabulary)"
            for b, of_request in enumerate(self.draft_probs):
                wrong = wrong or _bad_laws(f"draft_probs[{b}]", of_request, range(len(of_request)))
        return wrong


def _bad_coins(name: str, coins: Tensor, rows: Sequence[int]) -> str | None:
    values = coins.tolist()
    for row in rows:
        if not 0 <= values[row] < 1:
            return f"{name}[{row}] is {values[row]}: accepted are 0 up to but not including 1"
    return None


def _bad_laws(name: str, laws: Tensor, rows: Sequence[int]) -> str | None:
    if not len(rows):
        return None
    if bool((laws[rows] >= 0).all()) and bool(((laws[rows].sum(-1) - 1).abs() <= _MASS).all()):
        return None
    for row in rows:
        for token, share in enumerate(laws[row].tolist()):
            if not share >= 0:
                return f"{name}[{row}, {token}] is {share}: accepted are 0 and more"
        mass = float(laws[row].sum())
        if not abs(mass - 1) <= _MASS:
            return f"{name}[{row}] adds up to {mass:.6g}: accepted is 1"
    return None
