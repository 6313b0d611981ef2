"""Capabilities of kernels that serve any attention, because they do none themselves."""

from __future__ import annotations

from typing import Any

from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.shape import KV_DTYPES


def beside_attention(**limits: Any) -> Capabilities:
    """Of Triton kernels: on a GPU, or interpreted on the CPU; whatever the layer's logits go through.

    `limits`: further fields of `Capabilities`.
    """
    return Capabilities(
        devices={"cpu"} if interpreted() else {"cuda"},
        softcap=True,
        sinks=True,
        alibi=True,
        kv_dtypes={None, *KV_DTYPES},
        **limits,
    )
