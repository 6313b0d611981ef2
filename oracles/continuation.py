"""What plain decoding makes of a prompt, as far as somebody asks, and how sure of it one may be.

No tree, no batch, no slot, no round: one token after another in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.oracles.processed import Asked, processed
from treeproof.oracles.sequence import Continuing
from treeproof.oracles.target_errors import Errors
from treeproof.oracles.target_steps import Steps, with_limit


@dataclass
class Continuation:
    """A prompt that goes on. `tokens` are those known so far, the first `prompt_len` the prompt's."""

    model: TargetModel
    asked: Asked | None
    prompt_len: int
    tokens: list[int]
    _sequence: Continuing
    _raw: list[Tensor]
    """Logits after each token."""
    _others: dict[tuple[int, int], Continuation] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: TargetModel, prompt: Sequence[int], asked: Asked | None = None
    ) -> Continuation:
        """Of one token at least, all below the model's `vocab_size`; `asked` of each that follows."""
        sequence = Continuing(model)
        raw = list(sequence.read(prompt)[0])
        return cls(model, asked, len(prompt), list(prompt), sequence, raw)

    def grow(self, length: int) -> None:
        """Go on greedily until so many tokens are known."""
        while len(self.tokens) < length:
            self._read(self.best(len(self.tokens) - 1))

    def best(self, position: int) -> int:
        """What greedy decoding has behind `position`; of equal logits the lowest token."""
        return int(self.logits(position).argmax())

    def logits(self, position: int) -> Tensor:
        """(vocabulary,) float64 after the token at `position`, as the request asks for them."""
        return self.adjusted(self._raw[position], position)

    def raw(self, first: int, count: int) -> Tensor:
        """(count, vocabulary) float64 after the tokens from `first` on, whatever the request asks for."""
        self.grow(first + count)
        return torch.stack(self._raw[first : first + count])

    def adjusted(self, raw: Tensor, position: int) -> Tensor:
        """What the request makes of any logits (vocabulary,) after the token at `position`, in float64;
        nothing, where its grammar does not allow the tokens up to there."""
        if self.asked is None:
            return raw
        emitted = self.tokens[self.prompt_len : position + 1]
        made = processed(raw.tolist(), emitted, self.asked)
        return raw if made is None else torch.tensor(made, dtype=torch.float64)

    def from_cut(self, position: int) -> float | None:
        """How far the nearest logit after the token at `position`, as the request asks for them, is from where
        its min-p cuts others off; None where nothing does."""
        if self.asked is None or not self.asked.min_p:
            return None
        self.grow(position + 1)
        emitted = self.tokens[self.prompt_len : position + 1]
        made = processed(self._raw[position].tolist(), emitted, replace(self.asked, min_p=0.0))
        if made is None:
            return None
        edge = max(made) + math.log(self.asked.min_p)
        return min(abs(logit - edge) for logit in made)

    def with_token(self, position: int, token: int) -> Continuation:
        """The continuation in which `token` stands at `position`, behind the prompt: another one where
        this has another token there. What it has behind is then forgotten."""
        self.grow(position + 1)
        if self.tokens[position] == token:
            return self
        other = self._others.get((position, token))
        if other is None:
            other = self._others[position, token] = Continuation(
                self.model, self.asked, self.prompt_len, self.tokens[:position],
                self._sequence.forked(position), self._raw[:position],
            )  # fmt: skip
            other._read(token)
        return other

    def with_tokens(self, position: int, tokens: Sequence[int]) -> Continuation:
        """The continuation with these tokens from `position` on."""
        found = self
        for place, token in enumerate(tokens, start=position):
            found = found.with_token(place, token)
        return found

    def _read(self, token: int) -> None:
        self._raw += list(self._sequence.read([token])[0])
        self.tokens.append(token)


@lru_cache(maxsize=128)
def continuation(
    model: TargetModel, prompt: tuple[int, ...], asked: Asked | None = None
) -> Continuation:
    """The continuation of a prompt, which all who ask for it share."""
    return Continuation.of(model, prompt, asked)


class Sequence64:
    """A whole sequence, read once more with errors of an engine's size, so that each number has a
    limit: `logits` (n, vocabulary) and `limit` (n, 1); `keys` and `values` (layers, n, heads, lanes),
    keys turned as they are read, and their limits (layers, n, 1, 1)."""

    def __init__(self, model: TargetModel, tokens: Sequence[int], errors: Errors) -> None:
        sequence = Continuing(model, Steps(model, errors))
        self.logits, self.limit = with_limit(sequence.read(tokens))
        self.keys, self.key_limit = _with_limits([m.keys for m in sequence.past])
        self.values, self.value_limit = _with_limits([m.values for m in sequence.past])


@lru_cache(maxsize=128)
def sequence64(model: TargetModel, tokens: tuple[int, ...], errors: Errors) -> Sequence64:
    return Sequence64(model, tokens, errors)


def _with_limits(kept: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """From (runs, heads, n, lanes) a layer."""
    runs = torch.stack(tuple(kept)).permute(1, 0, 3, 2, 4)  # (runs, layers, n, heads, lanes)
    _, limit = with_limit(runs.flatten(3).flatten(1, 2))
    return runs[0], limit.view(*runs.shape[1:3], 1, 1)
