"""Generations of FlashAttention: the names they are installed under, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VARLEN, KVCACHE = "flash_attn_varlen_func", "flash_attn_with_kvcache"
TORCH_VARLEN = "varlen_attn"


@dataclass(frozen=True)
class Name:
    """A module that a generation may be found under."""

    module: str
    distribution: str
    install: str
    known: str = ""
    """The version that was checked; empty: none, for want of hardware or of a wheel."""
    flags: str = ""
    """The module that holds the flags of the build."""


@dataclass(frozen=True)
class Generation:
    """What all builds of a generation have in common."""

    names: tuple[Name, ...]
    """The fullest build first: the first one that is installed is used."""
    majors: frozenset[int]
    """Compute capabilities, the number before the point."""
    paged: str
    """The function that takes pages, in those builds that have it."""
    table: str
    """What it calls their table."""
    kernels: str
    """What a launch runs on the device, as a profiler names it."""
    page_sizes: frozenset[int] | None = None
    """None: any."""
    function: str = VARLEN
    """What takes lists of keys that lie one after another."""

    @property
    def checked(self) -> bool:
        """Whether one of its builds ran on hardware."""
        return any(name.known for name in self.names)


_FROM_SM80 = frozenset({8, 9, 10, 11, 12})
_OF_256 = frozenset(range(256, 1025, 256))

GENERATIONS: Mapping[str, Generation] = {
    "fa2": Generation(
        names=(
            Name(
                "flash_attn.flash_attn_interface",
                "flash-attn",
                "pip install flash-attn --no-build-isolation",
            ),
        ),
        majors=_FROM_SM80,
        paged=VARLEN,
        table="block_table",
        page_sizes=_OF_256,
        kernels="*flash_fwd*",
    ),
    "fa3": Generation(
        names=(
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
        majors=frozenset({9}),
        paged=KVCACHE,
        table="page_table",
        kernels="*FlashAttnFwd*",
    ),
    "fa4": Generation(
        names=(
            Name(
                "flash_attn.cute.interface",
                "flash-attn-4",
                "pip install flash-attn-4==4.0.0b36",
                known="4.0.0b36",
            ),
        ),
        majors=frozenset({9, 10, 11}),
        paged=VARLEN,
        table="page_table",
        # Those that were found right on the checked version; its source names no limit.
        page_sizes=frozenset({1, 16, 128}),
        kernels="*FlashAttentionForward*",
    ),
    "torch-varlen": Generation(
        # torch carries a FlashAttention 2 of its own.
        names=(
            Name(
                "torch.nn.attention.varlen",
                "torch",
                "pip install 'torch>=2.10'",
                known="2.11.0",  # without pages, which later ones have
            ),
        ),
        majors=_FROM_SM80,
        paged=TORCH_VARLEN,
        table="block_table",
        page_sizes=_OF_256,
        function=TORCH_VARLEN,
        kernels="*flash_fwd*",
    ),
}
