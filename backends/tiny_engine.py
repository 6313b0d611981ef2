"""Backend `tiny-engine`: a whole engine as a black box, tokens and a tree in, logits out.

A small language model (`treeproof.contract.target_model`) in float32. All rows of a request go
through each layer together; a row attends to the prefix and to the rows that its parent pointers
lead to. What the prefix's layers held is kept from call to call by its tokens, as engines do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights

_KEPT = 8
"""Prefixes whose keys and values are kept."""

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values (n, heads, lanes) of each layer."""


@register(
    "tiny-engine",
    consumes={"draft_token", "positions", "qo_indptr", "retrieve_parent_token"},
    capabilities=Capabilities(windows=False, vocab_size=TargetModel().vocab_size),
)
class TinyEngine:
    """One forward over the whole tree."""

    model = TargetModel()

    def __init__(self) -> None:
        self.weights = {name: torch.tensor(rows) for name, rows in weights(self.model).items()}
        self.prefixes: dict[tuple[int, ...], Cache] = {}

    def forward(self, x: VerifyInput, prefix_tokens: Sequence[Tensor]) -> Tensor:
        """Logits (T, vocabulary) after each row; padded rows are free."""
        if x.retrieve_parent_token is None:
            raise ValueError("retrieve_parent_token was not built")
        device = x.draft_token.device
        first = x.qo_indptr.tolist()
        logits = torch.zeros(first[-1], self.model.vocab_size, device=device)
        for b, tokens in enumerate(prefix_tokens):
            parents = x.retrieve_parent_token[b].tolist()
            rows = [row for row, parent in enumerate(parents) if parent >= 0 or row == 0]
            sees = torch.tensor([_line(parents, row, len(rows)) for row in rows], device=device)
            prefix = self._prefix(tokens.to(device))
            visible = torch.cat((sees.new_ones(len(rows), len(tokens)), sees), 1)
            own = slice(first[b], first[b] + len(rows))
            hidden, _ = self._layers(x.draft_token[own], x.positions[own], prefix, visible)
            logits[own] = _norm(hidden) @ self.weights["head"].to(device)
        return logits

    def _prefix(self, tokens: Tensor) -> Cache:
        key = tuple(tokens.tolist())
        if key not in self.prefixes:
            count, shape = len(key), (0, self.model.heads, self.model.width // self.model.heads)
            nothing = [(tokens.new_zeros(shape).float(),) * 2] * self.model.layers
            causal = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
            index = torch.arange(count, device=tokens.device)
            if len(self.prefixes) == _KEPT:
                self.prefixes.clear()
            self.prefixes[key] = self._layers(tokens, index, nothing, causal)[1]
        return self.prefixes[key]

    def _layers(
        self, tokens: Tensor, index: Tensor, before: Cache, visible: Tensor
    ) -> tuple[Tensor, Cache]:
        """Hidden states (n, width), and keys and values of `before` and of these n tokens."""
        w = {name: weight.to(tokens.device) for name, weight in self.weights.items()}
        hidden, after = w["embed"][tokens], []
        shape = (len(tokens), self.model.heads, self.model.width // self.model.heads)
        for layer, (keys, values) in enumerate(before):
            normed = _norm(hidden)
            q = self._turned((normed @ w[f"q{layer}"]).view(shape), index)
            k = self._turned((normed @ w[f"k{layer}"]).view(shape), index)
            keys = torch.cat((keys, k))
            values = torch.cat((values, (normed @ w[f"v{layer}"]).view(shape)))
            after.append((keys, values))
            scores = torch.einsum("nhd,mhd->hnm", q, keys) * q.shape[2] ** -0.5
            p = scores.masked_fill(~visible, float("-inf")).softmax(dim=2)
            attended = torch.einsum("hnm,mhd->nhd", p, values).flatten(1)
            hidden = hidden + attended @ w[f"o{layer}"]
            inner = torch.nn.functional.silu(_norm(hidden) @ w[f"up{layer}"])
            hidden = hidden + inner @ w[f"down{layer}"]
        return hidden, after

    def _turned(self, x: Tensor, index: Tensor) -> Tensor:
        half = x.shape[2] // 2
        plane = torch.arange(half, dtype=torch.float64, device=x.device)
        angle = index[:, None].double() * self.model.rotary ** (-plane / half)
        cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
        low, high = x[..., :half], x[..., half:]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), 2)


def _norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(dim=1, keepdim=True) + NORM_FLOOR).rsqrt()


def _line(parents: Sequence[int], row: int, width: int) -> list[bool]:
    """Which of the first `width` rows lie on the way from the root to this one, itself included."""
    seen = [False] * width
    while row >= 0 and not seen[row]:
        seen[row] = True
        row = parents[row]
    return seen
