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
"""(layer, q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, Dv)) to out (T, Hq, Dv), of any float dtype. Scale,
softcap and window are those of the model's layer: scores are its own business."""


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
            name: torch.tensor(values, dtype=dtype, device=device)
            for name, values in weights(model).items()
        }
        for layer in range(model.layers):  # what rows are multiplied by together lies side by side
            for name, parts in (("qkv", "qkv"), ("gate_up", ("gate", "up"))):
                beside = [self.weights.pop(f"{part}{layer}") for part in parts]
                self.weights[f"{name}{layer}"] = torch.cat(beside, dim=1)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Logits (T, vocabulary) in the decoder's dtype after T rows.

        tokens, positions (T,) int64: below the model's `vocab_size`, and the logical index of each.
        `attention` is called once a layer, in order, with queries and keys that are already turned.
        """
        model, w = self.model, self.weights
        hidden = w["embed"][tokens]
        bases = [model.base(layer) for layer in range(model.layers)]
        turns = {
            base: self._by_lane(*self._turns(positions, base))
            for base in set(bases)
            if base is not None
        }
        for layer, base in enumerate(bases):
            q, k, v = self._projected(layer, hidden)
            if base is not None:
                both = self._turned(torch.cat((q, k), 1), *turns[base])
                q, k = both[:, : model.heads], both[:, model.heads :]
            attended = attention(layer, q, k, v).flatten(1).to(self.dtype) @ w[f"o{layer}"]
            hidden = hidden + self._after(f"attended_norm{layer}", attended)
            hidden = hidden + self._after(f"carried_norm{layer}", self._inner(layer, hidden))
        logits = _norm(hidden, w["norm"]) @ w["head"]
        return _capped(logits, model.final_softcap)

    def _projected(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by heads, not turned yet."""
        model, w = self.model, self.weights
        normed = _norm(hidden, w[f"attend_norm{layer}"])
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        made = normed @ w[f"qkv{layer}"]
        q, k, v = made[:, :queries], made[:, queries : queries + keys], made[:, queries + keys :]
        if model.qkv_bias:
            q, k, v = (
                x + w[f"{name}_bias{layer}"] for name, x in zip("qkv", (q, k, v), strict=True)
            )
        q, k = q.view(-1, model.heads, model.head_dim), k.view(-1, model.kv_heads, model.head_dim)
        if model.qk_norm:
            q, k = _norm(q, w[f"q_norm{layer}"]), _norm(k, w[f"k_norm{layer}"])
        return q, k, v.view(-1, model.kv_heads, model.v_head_dim)

    def _inner(self, layer: int, hidden: Tensor) -> Tensor:
        w, functional = self.weights, torch.nn.functional
        normed = _norm(hidden, w[f"inner_norm{layer}"])
        gate, up = (normed @ w[f"gate_up{layer}"]).chunk(2, 1)
        if self.model.activation == "gelu":
            gate = functional.gelu(gate, approximate="tanh")
        else:
            gate = functional.silu(gate)
        return (gate * up) @ w[f"down{layer}"]

    def _after(self, name: str, added: Tensor) -> Tensor:
        return _norm(added, self.weights[name]) if self.model.post_norm else added

    def _turns(self, positions: Tensor, base: float) -> tuple[Tensor, Tensor]:
        """Cosine and sine (T, 1, pairs) of each pair's angle, which is taken in float64."""
        pairs = self.model.turned_lanes // 2
        plane = torch.arange(pairs, dtype=torch.float64, device=self.device)
        angle = positions[:, None, None].double() * base ** (-plane / pairs)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)

    def _by_lane(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """What each lane is multiplied by, and what the other lane of its pair, (T, 1, lanes)."""
        own, other = (cos, cos), (-sin, sin)
        if self.model.interleaved:
            return torch.stack(own, -1).flatten(-2), torch.stack(other, -1).flatten(-2)
        return torch.cat(own, -1), torch.cat(other, -1)

    def _turned(self, x: Tensor, of_own: Tensor, of_other: Tensor) -> Tensor:
        lanes = self.model.turned_lanes
        whole = lanes == x.shape[-1]
        own = x if whole else x[..., :lanes]
        if self.model.interleaved:
            other = own.view(*own.shape[:-1], -1, 2).flip(-1).flatten(-2)
        else:
            other = own.roll(lanes // 2, -1)
        own = torch.addcmul(own * of_own, other, of_other)
        return own if whole else torch.cat((own, x[..., lanes:]), -1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    """Along the last axis by the root mean square, which is taken in float32 at least."""
    if x.element_size() >= 4:
        return torch.rms_norm(x, weight.shape, weight, NORM_FLOOR)
    wide = x.float()
    size = (wide.square().mean(dim=-1, keepdim=True) + NORM_FLOOR).rsqrt()
    return (wide * size).to(x.dtype) * weight


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)
