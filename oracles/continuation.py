"""What plain greedy decoding makes of a prompt, as far as somebody asks, and how sure of it one may be.

No tree, no batch, no slot, no round: one token after another in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.oracles.sequence import Continuing
from treeproof.oracles.target_errors import Errors
from treeproof.oracles.target_steps import Steps, with_limit


class Continuation:
    """A prompt that goes on. `tokens` are those known so far, the prompt's first."""

    def __init__(self, model: TargetModel, prompt: Sequence[int]) -> None:
        """At least one token, all below the model's `vocab_size`."""
        self.model = model
        self.tokens = list(prompt)
        self._sequence = Continuing(model)
        self._logits: list[Tensor] = list(self._sequence.read(prompt)[0])  # after each token

    def grow(self, length: int) -> None:
        """Go on greedily until so many tokens are known; of equal logits the lowest token."""
        while len(self.tokens) < length:
            token = int(self._logits[-1].argmax())
            self._logits += list(self._sequence.read([token])[0])
            self.tokens.append(token)

    def logits(self, position: int) -> Tensor:
        """(vocabulary,) float64 after the token at `position`."""
        return self._logits[position]

    def with_token(self, position: int, token: int) -> Continuation:
        """The continuation in which `token` stands at `position`: another one where this has another
        token there. What it has behind is then forgotten."""
        self.grow(position + 1)
        if self.tokens[position] == token:
            return self
        return Continuation(self.model, [*self.tokens[:position], token])


@lru_cache(maxsize=32)
def continuation(model: TargetModel, prompt: tuple[int, ...]) -> Continuation:
    """The continuation of a prompt, which all who ask for it share."""
    return Continuation(model, prompt)


class Sequence64:
    """A whole sequence, read once more with errors of an engine's size, so that each number has a
    limit: `logits` (n, vocabulary) and `limit` (n, 1); `keys` and `values` (layers, n, heads, lanes),
    keys turned as they are read, and their limits (layers, n, 1, 1)."""

    def __init__(self, model: TargetModel, tokens: Sequence[int], errors: Errors) -> None:
        sequence = Continuing(model, Steps(model, errors))
        self.logits, self.limit = with_limit(sequence.read(tokens))
        self.keys, self.key_limit = _with_limits([m.keys for m in sequence.past])
        self.values, self.value_limit = _with_limits([m.values for m in sequence.past])


@lru_cache(maxsize=32)
def sequence64(model: TargetModel, tokens: tuple[int, ...], errors: Errors) -> Sequence64:
    return Sequence64(model, tokens, errors)


def _with_limits(kept: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """From (runs, heads, n, lanes) a layer."""
    runs = torch.stack(tuple(kept)).permute(1, 0, 3, 2, 4)  # (runs, layers, n, heads, lanes)
    _, limit = with_limit(runs.flatten(3).flatten(1, 2))
    return runs[0], limit.view(*runs.shape[1:3], 1, 1)
