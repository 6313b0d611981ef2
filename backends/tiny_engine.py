"""Backend `tiny-engine`: a whole engine as a black box, tokens and a tree in, logits out.

A small language model (`treeproof.contract.target_model`) in float32. All rows of a request go
through each layer together; a row attends to the prefix and to the rows that its parent pointers
lead to. What the prefix's layers held is kept from call to call by its tokens, as engines do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.target_model import TargetModel

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
        self.decoder = Decoder(self.model)
        self.prefixes: dict[tuple[int, ...], Cache] = {}

    def forward(self, x: VerifyInput, prefix_tokens: Sequence[Tensor]) -> Tensor:
        """Logits (T, vocabulary) after each row; padded rows are free."""
        if x.retrieve_parent_token is None:
            raise ValueError("retrieve_parent_token was not built")
        device = x.draft_token.device
        if self.decoder.device != device:
            self.decoder = Decoder(self.model, device=device)
        first = x.qo_indptr.tolist()
        logits = torch.zeros(first[-1], self.model.vocab_size, device=device)
        for b, tokens in enumerate(prefix_tokens):
            parents = x.retrieve_parent_token[b].tolist()
            rows = [row for row, parent in enumerate(parents) if parent >= 0 or row == 0]
            sees = torch.tensor([_line(parents, row, len(rows)) for row in rows], device=device)
            prefix = self._prefix(tokens.to(device))
            visible = torch.cat((sees.new_ones(len(rows), len(tokens)), sees), 1)
            own = slice(first[b], first[b] + len(rows))
            read = _Reading(prefix, visible)
            logits[own] = self.decoder.forward(x.draft_token[own], x.positions[own], read)
        return logits

    def _prefix(self, tokens: Tensor) -> Cache:
        key = tuple(tokens.tolist())
        if key not in self.prefixes:
            count, shape = len(key), (0, self.model.kv_heads, self.model.head_dim)
            nothing = [(tokens.new_zeros(shape).float(),) * 2] * self.model.layers
            causal = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
            if len(self.prefixes) == _KEPT:
                self.prefixes.clear()
            read = _Reading(nothing, causal)
            self.decoder.forward(tokens, torch.arange(count, device=tokens.device), read)
            self.prefixes[key] = read.after
        return self.prefixes[key]


class _Reading:
    """Attention of n tokens on `before` and on each other, as a mask (n, all) says.

    `after` is what all layers hold then.
    """

    def __init__(self, before: Cache, visible: Tensor) -> None:
        self.before, self.visible = before, visible
        self.after: Cache = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (before_k, before_v), visible = self.before[layer], self.visible
        keys, values = torch.cat((before_k, k)), torch.cat((before_v, v))
        self.after.append((keys, values))
        scores = torch.einsum("nhd,mhd->hnm", q, keys) * q.shape[2] ** -0.5
        p = scores.masked_fill(~visible, float("-inf")).softmax(dim=2)
        return torch.einsum("hnm,mhd->nhd", p, values)


def _line(parents: Sequence[int], row: int, width: int) -> list[bool]:
    """Which of the first `width` rows lie on the way from the root to this one, itself included."""
    seen = [False] * width
    while row >= 0 and not seen[row]:
        seen[row] = True
        row = parents[row]
    return seen
