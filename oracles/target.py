"""A small language model on every path of a tree, in float64, and how far float32 may be from it.

A token sees what came before it on its own path: a list that grows by one. The limit is measured on
the model itself: it is run several times more with every operation off by as much as float32 can be
off there ((terms + 2) u of the summed magnitudes, u = 2^-24) in a random direction, so errors travel
through layers as they do and not as norms would let them. Three times the largest change seen is
allowed: real roundings are smaller than that from the start, for those of a sum cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights
from treeproof.contract.tree import CandidateTree

_U = 2.0**-24
_RUNS = 4
"""Runs with errors, beside the one without."""

_ALLOWED = 3.0


@dataclass(frozen=True)
class TargetResult:
    """In node order, float64: logits (N, vocabulary), and the limit on their errors (N, 1)."""

    logits: Tensor
    limit: Tensor


@dataclass(frozen=True)
class _Seen:
    """Keys and values (runs, heads, n, lanes) of one layer."""

    keys: Tensor
    values: Tensor

    def __add__(self, more: _Seen) -> _Seen:
        keys, values = ((self.keys, more.keys), (self.values, more.values))
        return _Seen(torch.cat(keys, 2), torch.cat(values, 2))


@lru_cache(maxsize=4)
def _matrices(model: TargetModel) -> dict[str, Tensor]:
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in weights(model).items()}


class _Errors:
    """Errors of float32 operations: none in the first run, of random sign in the others."""

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)

    def of(self, exact: Tensor, magnitude: Tensor, terms: int) -> Tensor:
        """`exact` (runs, ...) with an error of (terms + 2) u times `magnitude`."""
        sign = torch.randint(0, 2, exact.shape, generator=self._draw).double() * 2 - 1
        sign[0] = 0.0
        return exact + (terms + 2) * _U * magnitude * sign

    def times(self, x: Tensor, matrix: Tensor) -> Tensor:
        return self.of(x @ matrix, x.abs() @ matrix.abs(), len(matrix))


def target_logits(
    model: TargetModel, prefix: Sequence[int], tree: CandidateTree, tokens: Sequence[int]
) -> TargetResult:
    """Logits after every node: the model on `prefix` and then the tokens of the node's path.

    `tokens[v]` is node v's, below `model.vocab_size`, whatever the tree itself holds. Raises
    ValueError where a token is not.
    """
    for token in (*prefix, *tokens):
        if not 0 <= token < model.vocab_size:
            raise ValueError(f"token {token}: accepted are 0 to {model.vocab_size - 1}")
    errors = _Errors(model.seed)
    none = torch.zeros(1 + _RUNS, model.heads, 0, model.width // model.heads, dtype=torch.float64)
    nothing = [_Seen(none, none)] * model.layers
    before = _run(model, errors, prefix, 0, nothing)[1] if prefix else nothing
    own: list[list[_Seen]] = []
    logits = []
    for node in range(len(tree)):
        past = list(before)
        for ancestor in tree.ancestors(node):
            past = [seen + new for seen, new in zip(past, own[ancestor], strict=True)]
        index = len(prefix) + tree.depth[node]
        x, seen = _run(model, errors, [tokens[node]], index, past)
        own.append(seen)
        logits.append(errors.times(_norm(errors, x), _matrices(model)["head"])[:, 0])
    every = torch.stack(logits, 1)  # (runs, N, vocabulary)
    change = (every[1:] - every[0]).abs().amax(dim=(0, 2))
    return TargetResult(every[0], _ALLOWED * change[:, None])


def _norm(errors: _Errors, x: Tensor) -> Tensor:
    normed = x / (x.square().mean(dim=-1, keepdim=True) + NORM_FLOOR).sqrt()
    return errors.of(normed, normed.abs(), x.shape[-1] // 2 + 4)


def _run(
    model: TargetModel, errors: _Errors, tokens: Sequence[int], start: int, past: Sequence[_Seen]
) -> tuple[Tensor, list[_Seen]]:
    """Tokens in a row from logical index `start`, after `past`: x (runs, n, width), their K and V."""
    w = _matrices(model)
    x = w["embed"][list(tokens)].expand(1 + _RUNS, -1, -1)
    index = torch.arange(start, start + len(tokens))
    own = []
    for layer in range(model.layers):
        h = _norm(errors, x)
        q = _turned(model, errors, errors.times(h, w[f"q{layer}"]), index)
        k = _turned(model, errors, errors.times(h, w[f"k{layer}"]), index)
        v = errors.times(h, w[f"v{layer}"]).view(*h.shape[:2], model.heads, -1).transpose(1, 2)
        new = _Seen(k, v)
        attended = _attend(errors, q, past[layer] + new)
        x = x + errors.times(attended, w[f"o{layer}"])
        x = errors.of(x, x.abs(), 0)
        up = errors.times(_norm(errors, x), w[f"up{layer}"])
        up = up * up.sigmoid()
        x = x + errors.times(errors.of(up, up.abs(), 4), w[f"down{layer}"])
        x = errors.of(x, x.abs(), 0)
        own.append(new)
    return x, own


def _turned(model: TargetModel, errors: _Errors, x: Tensor, index: Tensor) -> Tensor:
    """(runs, n, width) to (runs, heads, n, lanes), turned to its index."""
    lanes = model.width // model.heads
    plane = torch.arange(lanes // 2, dtype=torch.float64)
    angle = index.double()[:, None] * model.rotary ** (-2 * plane / lanes)
    cos, sin = angle.cos(), angle.sin()
    low, high = x.view(*x.shape[:2], model.heads, lanes).transpose(1, 2).chunk(2, dim=-1)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    size = torch.cat((low.abs() + high.abs(),) * 2, dim=-1)
    return errors.of(turned, size, 2)


def _attend(errors: _Errors, q: Tensor, seen: _Seen) -> Tensor:
    """q (runs, heads, m, lanes), the last m tokens of `seen`: each on what came before and itself.

    (runs, m, width).
    """
    scale, older = q.shape[3] ** -0.5, seen.keys.shape[2] - q.shape[2]
    keys, values = seen.keys.contiguous(), seen.values.contiguous()
    key_sizes, value_sizes = keys.abs(), values.abs()
    out = []
    for i in range(q.shape[2]):
        end = older + i + 1
        one = q[:, :, i, :, None]
        scores = keys[:, :, :end] @ one * scale  # (runs, heads, n, 1)
        size = key_sizes[:, :, :end] @ one.abs() * scale
        p = errors.of(scores, size, q.shape[3]).softmax(dim=2).mT
        size = p @ value_sizes[:, :, :end]
        out.append(errors.of(p @ values[:, :, :end], size, end + 6))
    return torch.cat(out, 2).transpose(1, 2).flatten(2)
