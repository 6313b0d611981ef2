"""Tiny random Hugging Face decoders, built locally, and what they are as a `TargetModel`.

Their own code rounds norms, angles and softmaxes to float32 whatever the weights are;
`InFloat64` runs that very code with float64 in float32's place, so that it can be held to the last bit.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from treeproof.contract.target_model import NORM_FLOOR, TargetModel

_MISSING = importlib.util.find_spec("transformers") is None
optional = pytest.mark.skipif(
    _MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1",
    reason="transformers is missing: pip install transformers; TREEPROOF_REQUIRE_OPTIONAL=1 insists",
)

_SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": NORM_FLOOR, "pad_token_id": 0,
    "initializer_range": 0.25, "attn_implementation": "eager",
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 500.0}
_MIXED = {
    "num_hidden_layers": 3, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
_PLAIN = {"num_hidden_layers": 2}

_OURS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 8, "rotary": 500.0}
_WINDOWS: dict[str, Any] = {"layers": 3, "windows": (4, None, 4)}
_GEMMA: dict[str, Any] = {
    **_OURS, **_WINDOWS, "activation": "gelu", "post_norm": True, "scale": 12**-0.5,
}  # fmt: skip

ARCHITECTURES: dict[str, tuple[dict[str, Any], TargetModel]] = {
    "Llama": ({**_PLAIN, "rope_parameters": _ROPE}, TargetModel(**_OURS)),
    "Qwen2": (
        {**_MIXED, "rope_parameters": _ROPE, "use_sliding_window": True},
        TargetModel(**_OURS, **_WINDOWS, qkv_bias=True),
    ),
    "Qwen3": (
        {**_MIXED, "rope_parameters": _ROPE, "use_sliding_window": True},
        TargetModel(**_OURS, **_WINDOWS, qk_norm=True),
    ),
    "Gemma2": (
        {
            **_MIXED, "rope_parameters": _ROPE, "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0,
        },
        TargetModel(**_GEMMA, softcap=3.0, final_softcap=5.0),
    ),
    "Gemma3": (
        {
            **_MIXED, "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": _ROPE,
                "sliding_attention": {**_ROPE, "rope_theta": 30.0},
            },
        },
        TargetModel(**_GEMMA, qk_norm=True, windowed_rotary=30.0),
    ),
    "Glm": (
        {
            **_PLAIN, "attention_bias": True,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
        TargetModel(**_OURS, rotary_lanes=4, interleaved=True, qkv_bias=True),
    ),
}  # fmt: skip
"""Of each class: what its configuration says, and what that is here."""


class InFloat64(TorchFunctionMode):
    """Whoever asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()

        def wide(given: Any) -> Any:
            return torch.float64 if given is torch.float32 else given

        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def built(name: str, seed: int = 1) -> Any:
    """A model of this architecture in float64, every parameter random."""
    import transformers

    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**_SIZES, **ARCHITECTURES[name][0])
    torch.manual_seed(seed)
    with InFloat64():
        model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    for parameter in model.parameters():  # norms and biases begin as ones and zeros
        if parameter.dim() == 1:
            parameter.data.add_(torch.rand_like(parameter) / 2 - 0.25)
    return model
