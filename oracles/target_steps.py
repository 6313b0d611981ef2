"""The steps of the small language model in float64, each as far off as float32 may be.

Tensors start with (runs, ...): the first run has no errors, every other one has errors of random
sign. What a token reads is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights

_U = 2.0**-24
_RUNS = 4
"""Runs with errors, beside the one without."""

_ALLOWED = 3.0


@dataclass(frozen=True)
class Memory:
    """Keys and values (runs, heads, n, lanes) of one layer."""

    keys: Tensor
    values: Tensor

    def __add__(self, more: Memory) -> Memory:
        keys, values = ((self.keys, more.keys), (self.values, more.values))
        return Memory(torch.cat(keys, 2), torch.cat(values, 2))


@dataclass(frozen=True)
class Turns:
    """Cosine and sine (n, lanes / 2) of the angle of each pair of lanes."""

    cos: Tensor
    sin: Tensor


@lru_cache(maxsize=4)
def _matrices(model: TargetModel) -> dict[str, Tensor]:
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in weights(model).items()}


class Steps:
    """What a layer does, but for which keys are read. One object draws the errors of its runs.

    `with_errors` runs have errors, beside the one without; 0 where no limit is asked for.
    """

    def __init__(self, model: TargetModel, with_errors: int = _RUNS) -> None:
        self.model, self._runs = model, 1 + with_errors
        self._w = _matrices(model)
        self._draw = torch.Generator().manual_seed(model.seed)
        lanes = model.width // model.heads
        none = torch.zeros(self._runs, model.heads, 0, lanes, dtype=torch.float64)
        self.nothing = Memory(none, none)

    def embedded(self, tokens: Sequence[int]) -> Tensor:
        """(runs, n, width)."""
        return self._w["embed"][list(tokens)].expand(self._runs, -1, -1)

    def turns(self, index: Tensor) -> Turns:
        """How far queries and keys at these logical indices (n,) are turned, in every layer."""
        lanes = self.model.width // self.model.heads
        plane = torch.arange(lanes // 2, dtype=torch.float64)
        angle = index.double()[:, None] * self.model.rotary ** (-2 * plane / lanes)
        return Turns(angle.cos(), angle.sin())

    def projected(self, layer: int, x: Tensor, turns: Turns) -> tuple[Tensor, Memory]:
        """Queries (runs, heads, n, lanes) and what a layer keeps of n tokens."""
        w, h = self._w, self._norm(x)
        q = self._turned(self._times(h, w[f"q{layer}"]), turns)
        k = self._turned(self._times(h, w[f"k{layer}"]), turns)
        return q, Memory(k, self._split(self._times(h, w[f"v{layer}"])))

    def attended(self, q: Tensor, seen: Memory) -> Tensor:
        """One token's query (runs, heads, lanes) on all of `seen`: (runs, heads, lanes)."""
        scale, n = q.shape[2] ** -0.5, seen.keys.shape[2]
        one = q[..., None]
        scores = seen.keys @ one * scale  # (runs, heads, n, 1)
        scores = self._off(scores, lambda: seen.keys.abs() @ one.abs() * scale, q.shape[2])
        p = scores.softmax(dim=2).mT
        return self._off(p @ seen.values, lambda: p @ seen.values.abs(), n + 6)[:, :, 0]

    def carried(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """x (runs, n, width) behind a layer whose heads gave (runs, heads, n, lanes)."""
        w = self._w
        x = x + self._times(attended.transpose(1, 2).flatten(2), w[f"o{layer}"])
        x = self._off(x, x.abs, 0)
        up = self._times(self._norm(x), w[f"up{layer}"])
        up = up * up.sigmoid()
        x = x + self._times(self._off(up, up.abs, 4), w[f"down{layer}"])
        return self._off(x, x.abs, 0)

    def logits(self, x: Tensor) -> Tensor:
        """(runs, n, vocabulary)."""
        return self._times(self._norm(x), self._w["head"])

    def _off(self, exact: Tensor, magnitude: Callable[[], Tensor], terms: int) -> Tensor:
        """`exact` (runs, ...) with an error of (terms + 2) u times `magnitude`."""
        if self._runs == 1:
            return exact
        sign = torch.randint(0, 2, exact.shape, generator=self._draw).double() * 2 - 1
        sign[0] = 0.0
        return exact + (terms + 2) * _U * magnitude() * sign

    def _times(self, x: Tensor, matrix: Tensor) -> Tensor:
        return self._off(x @ matrix, lambda: x.abs() @ matrix.abs(), len(matrix))

    def _norm(self, x: Tensor) -> Tensor:
        normed = x / (x.square().mean(dim=-1, keepdim=True) + NORM_FLOOR).sqrt()
        return self._off(normed, normed.abs, x.shape[-1] // 2 + 4)

    def _split(self, x: Tensor) -> Tensor:
        """(runs, n, width) to (runs, heads, n, lanes)."""
        return x.view(*x.shape[:2], self.model.heads, -1).transpose(1, 2)

    def _turned(self, x: Tensor, turns: Turns) -> Tensor:
        """(runs, n, width) to (runs, heads, n, lanes), turned."""
        cos, sin = turns.cos, turns.sin
        low, high = self._split(x).chunk(2, dim=-1)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
        return self._off(turned, lambda: torch.cat((low.abs() + high.abs(),) * 2, dim=-1), 2)


def with_limit(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (runs, n, vocabulary) to those without errors (n, vocabulary) and the limit (n, 1)."""
    change = (logits[1:] - logits[0]).abs().amax(dim=(0, 2))
    return logits[0], _ALLOWED * change[:, None]


def in_a_row(
    steps: Steps, tokens: Sequence[int], start: int, past: Sequence[Memory]
) -> tuple[Tensor, list[Memory]]:
    """Tokens one after another from logical index `start`, each on `past`, what came before it and
    itself: x (runs, n, width), and what each layer keeps of them."""
    x, own = steps.embedded(tokens), []
    turns = steps.turns(torch.arange(start, start + len(tokens)))
    for layer, before in enumerate(past):
        q, new = steps.projected(layer, x, turns)
        own.append(new)
        x = steps.carried(layer, x, _each_after_the_other(steps, q, before, new))
    return x, own


def _each_after_the_other(steps: Steps, q: Tensor, before: Memory, own: Memory) -> Tensor:
    """q (runs, heads, m, lanes) of the m tokens of `own`; the same shape."""
    seen, older, out = before + own, before.keys.shape[2], []
    for i in range(q.shape[2]):
        end = older + i + 1
        upto = Memory(seen.keys[:, :, :end], seen.values[:, :, :end])
        out.append(steps.attended(q[:, :, i], upto))
    return torch.stack(out, 2)
