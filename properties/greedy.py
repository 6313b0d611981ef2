"""A greedy choice against exact logits: right, one of those that rounding leaves open, or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Choice = Literal["pass", "tie", "fail"]


def judge_choice(logits: Sequence[float], limits: Sequence[float], chosen: int) -> Choice:
    """Whether `chosen` may be the argmax of logits that are off by `limits[t]` at most, each.

    `pass`: it is the largest logit (of equal ones, the first). `tie`: another is larger, and not by
    more than rounding explains: no kernel is at fault. `fail`: rounding does not explain it.
    """
    best = max(range(len(logits)), key=lambda token: (logits[token], -token))
    if chosen == best:
        return "pass"
    at_most = logits[chosen] + limits[chosen]
    explained = all(at_most >= logit - limit for logit, limit in zip(logits, limits, strict=True))
    return "tie" if explained else "fail"
