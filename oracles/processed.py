"""What a request asks of the token after a path, on that path alone: penalties, bias, grammar, min-p.

Float64, one path, one token after the other; no row, no link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """Of one request. `counts`, `bias` and the lines of `grammar` have an entry a token; a line of
    `grammar` says what state follows, -1 none."""

    counts: Sequence[int]
    frequency: float
    presence: float
    repetition: float
    bias: Sequence[float]
    temperature: float
    min_p: float
    grammar: Sequence[Sequence[int]]
    state: int


def processed(
    logits: Sequence[float], drafts: Sequence[int], asked: Asked
) -> tuple[float, ...] | None:
    """The logits after the root and these drafts; None where the grammar does not allow the drafts."""
    counts, state = list(asked.counts), asked.state
    for token in drafts:
        counts[token] += 1
        state = asked.grammar[state][token]
        if state < 0:
            return None
    found = []
    for token, logit in enumerate(logits):
        if counts[token]:
            logit -= asked.frequency * counts[token] + asked.presence
            logit = logit / asked.repetition if logit > 0 else logit * asked.repetition
        allowed = asked.grammar[state][token] >= 0
        found.append((logit + asked.bias[token]) / asked.temperature if allowed else -math.inf)
    if not asked.min_p:
        return tuple(found)
    least = max(found) + math.log(asked.min_p)
    return tuple(logit if logit >= least else -math.inf for logit in found)
