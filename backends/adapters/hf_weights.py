"""The weights of a Hugging Face decoder by the names of `TargetModel`: Llama, Qwen, Gemma and GLM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treeproof.contract.target_model import TargetModel, weights

_PRE = {"input_layernorm": "attend_norm", "post_attention_layernorm": "inner_norm"}
_AROUND = {
    "input_layernorm": "attend_norm",
    "post_attention_layernorm": "attended_norm",
    "pre_feedforward_layernorm": "inner_norm",
    "post_feedforward_layernorm": "carried_norm",
}


def weights_of(model: Any) -> dict[str, Tensor]:
    """Each weight of a `...ForCausalLM` in the shape that `TargetModel` gives it.

    Views of its parameters, but where an architecture writes them down differently: Gemma's norms
    keep what is added to 1, and its embeddings what is multiplied by the root of the width.
    """
    body = model.model
    embedded = body.embed_tokens.weight
    scale = getattr(body.embed_tokens, "embed_scale", None)
    found = {
        "embed": embedded if scale is None else embedded * scale,
        "head": model.lm_head.weight.T,
        "norm": _norm(body.norm),
    }
    for i, layer in enumerate(body.layers):
        named = _layer(layer)
        found |= {f"{name}{i}": weight for name, weight in named.items()}
    return found


def fill(net: Any, model: TargetModel) -> Any:
    """`net` with the weights of `model`. Of Llama, Qwen and GLM: Gemma's would not be written through."""
    with torch.no_grad():
        for name, weight in weights_of(net).items():
            weight.copy_(torch.from_numpy(weights(model)[name]))
    return net


def _layer(layer: Any) -> dict[str, Tensor]:
    attention, inner = layer.self_attn, layer.mlp
    found = {}
    for name in "qkvo":
        product = getattr(attention, f"{name}_proj")
        found[name] = product.weight.T
        if name != "o" and product.bias is not None:
            found[f"{name}_bias"] = product.bias
    for name in ("q_norm", "k_norm"):
        if hasattr(attention, name):
            found[name] = _norm(getattr(attention, name))
    norms = _AROUND if hasattr(layer, "pre_feedforward_layernorm") else _PRE
    found |= {own: _norm(getattr(layer, theirs)) for theirs, own in norms.items()}
    if hasattr(inner, "gate_up_proj"):
        found["gate"], found["up"] = inner.gate_up_proj.weight.T.chunk(2, -1)
    else:
        found["gate"], found["up"] = inner.gate_proj.weight.T, inner.up_proj.weight.T
    return {**found, "down": inner.down_proj.weight.T}


def _norm(norm: Any) -> Tensor:
    weight: Tensor = norm.weight
    return weight + 1 if type(norm).__name__.startswith("Gemma") else weight
