"""The names under which FlashAttention is installed, and what installs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VARLEN, KVCACHE = "flash_attn_varlen_func", "flash_attn_with_kvcache"
TORCH_VARLEN = "varlen_attn"


@dataclass(frozen=True)
class Name:
    """A module that a generation of FlashAttention may be found under."""

    module: str
    distribution: str
    install: str
    known: str = ""
    """The version that was checked; empty: none, for want of hardware or of a wheel."""
    flags: str = ""
    """The module that holds the flags of the build."""
    function: str = VARLEN
    """What takes lists of keys."""


NAMES: Mapping[str, tuple[Name, ...]] = {
    "fa2": (
        Name(
            "flash_attn.flash_attn_interface",
            "flash-attn",
            "pip install flash-attn --no-build-isolation",
        ),
    ),
    "fa3": (
        Name(
            "flash_attn_interface",
            "flash-attn-3",
            "pip install --no-build-isolation ./hopper (in a clone of flash-attention)",
            flags="flash_attn_config",
        ),
        Name("sgl_kernel.flash_attn", "sglang-kernel", "pip install sglang-kernel"),
        Name(
            "fa3_fwd_interface",
            "fa3-fwd",
            "pip install fa3-fwd==0.0.3",
            known="0.0.3",
            flags="fa3_fwd_config",
        ),
    ),
    "fa4": (
        Name(
            "flash_attn.cute.interface",
            "flash-attn-4",
            "pip install flash-attn-4==4.0.0b36",
            known="4.0.0b36",
        ),
    ),
    "torch-varlen": (
        Name(
            "torch.nn.attention.varlen",
            "torch",
            "pip install 'torch>=2.10'",
            function=TORCH_VARLEN,
        ),
    ),
}
"""By generation, the fullest build first: the first one that is installed is used."""

KERNELS: Mapping[str, str] = {
    "fa2": "*flash_fwd*",
    "fa3": "*FlashAttnFwd*",
    "fa4": "*FlashAttentionForward*",
    "torch-varlen": "*flash_fwd*",
}
"""What a launch runs on the device, as a profiler names it."""
