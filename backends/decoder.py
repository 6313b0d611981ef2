"""A decoder whose attention is somebody else's: the small language model around any `attend`.

It does all of a layer but attention: the rows' queries, keys and values go to a function that is
given, turned to the positions that it was told, and what comes back goes on to the next layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, Dv)) to out (T, Hq, Dv)."""


class Decoder:
    """The model in `dtype` on `device`; it keeps nothing from one forward to the next."""

    def __init__(
        self,
        model: TargetModel,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model, self.dtype, self.device = model, dtype, torch.device(device)
        self.weights = {
            name: torch.tensor(rows, dtype=dtype, device=device)
            for name, rows in weights(model).items()
        }

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Logits (T, vocabulary) in the decoder's dtype after T rows.

        tokens, positions (T,) int64: below the model's `vocab_size`, and the logical index of each.
        `attention` is called once a layer, in order, with queries and keys that are already turned.
        """
        model, w = self.model, self.weights
        hidden = w["embed"][tokens]
        cos, sin = self._turns(positions)
        heads = (len(tokens), model.heads, model.width // model.heads)
        for layer in range(model.layers):
            normed = _norm(hidden)
            q, k, v = ((normed @ w[f"{name}{layer}"]).view(heads) for name in "qkv")
            attended = attention(layer, _turned(q, cos, sin), _turned(k, cos, sin), v)
            hidden = hidden + attended.flatten(1) @ w[f"o{layer}"]
            inner = torch.nn.functional.silu(_norm(hidden) @ w[f"up{layer}"])
            hidden = hidden + inner @ w[f"down{layer}"]
        return _norm(hidden) @ w["head"]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (T, 1, lanes / 2) of each pair's angle, which is taken in float64."""
        half = self.model.width // self.model.heads // 2
        plane = torch.arange(half, dtype=torch.float64, device=self.device)
        angle = positions[:, None, None].double() * self.model.rotary ** (-plane / half)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def _norm(x: Tensor) -> Tensor:
    """Each row by its root mean square, which is taken in float32 at least."""
    wide = x.float() if x.element_size() < 4 else x
    return (wide * (wide.square().mean(dim=1, keepdim=True) + NORM_FLOOR).rsqrt()).to(x.dtype)
