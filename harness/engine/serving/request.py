"""One request while it is served."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from treeproof.contract.script import Params
from treeproof.oracles.continuation import Continuation


@dataclass
class Served:
    """Where a request stands. Columns [0, `ready`) hold keys and values; `tokens` are the prompt and
    what was emitted, the next root last once the prompt is through.
    """

    number: int
    prompt: list[int]
    params: Params
    truth: Continuation
    table_row: int
    pages: list[int] = field(default_factory=list)
    """In logical order; -1 where the window has moved on."""
    ready: int = 0
    tokens: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    """Of each ready column, what its companions hold."""
    logits: list[Tensor] = field(default_factory=list)
    """(n, vocabulary) float64 on the CPU, a round: after the tokens that got their keys in it."""

    @property
    def emitted(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def prefilled(self) -> bool:
        return self.ready >= len(self.prompt)
