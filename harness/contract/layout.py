"""Where things lie in memory: the paged KV cache, and the tree mask."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from treeproof.contract.typed import Typed

MAX_SLOTS = 1 << 24
MAX_SLACK = 1 << 20

Order = Literal["contiguous", "reversed", "interleaved", "shuffled"]
CacheLayout = Literal["NHD", "HND", "layered", "interleaved"]
"""How the caches that a backend is handed lie in memory, lanes always one after another.

`NHD`: (num_slots, Hkv, lanes), contiguous. `layered`: the same, a view of one layer of a tensor for all
of them, (num_slots, layers, Hkv, lanes). `interleaved`: the same, a view of memory that holds each
slot's K before its V, (num_slots, 2, Hkv, lanes) where both are as wide. `HND`: (pages, Hkv, page_size,
lanes), contiguous; slot s is [s // page_size, :, s % page_size]."""


class MaskMode(IntEnum):
    """How a tree mask is laid out in memory; numbered as SGLang's `TreeMaskMode`."""

    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


class KVLayout(Typed, frozen=True, kw_only=True):
    """Where logical columns live in the paged KV cache.

    `order` is how pages are handed out: one after another, descending, round robin over the
    requests, or a permutation drawn from the case's seed. `num_slots` is the size of the cache, a
    multiple of `page_size`. `pad_slot` is where rows without a home are said to write: 0 (page 0
    is then never handed out) or -1. `page_table_pad` fills table cells past a request's length.
    `shared_prefix` first columns, whole pages, of every request are the slots of request 0 (a radix
    cache hit). With `evicted`, prefix pages that no row's window reaches have been given back and
    their table cells hold `page_table_pad`. `storage` is how the caches lie in memory.
    """

    page_size: int
    num_slots: int
    order: Order = "contiguous"
    pad_slot: int = 0
    page_table_pad: int = 0
    shared_prefix: int = 0
    evicted: bool = False
    storage: CacheLayout = "NHD"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.page_size <= 1024:
            raise ValueError(f"page_size is {self.page_size}: accepted are 1 to 1024")
        if not 1 <= self.num_slots <= MAX_SLOTS or self.num_slots % self.page_size:
            raise ValueError(
                f"num_slots is {self.num_slots}: accepted are 1 to {MAX_SLOTS}, multiples of "
                f"page_size {self.page_size}"
            )
        if self.pad_slot not in (0, -1):
            raise ValueError(f"pad_slot is {self.pad_slot}: accepted are 0 and -1")
        if not -1 <= self.page_table_pad < self.num_slots:
            raise ValueError(
                f"page_table_pad is {self.page_table_pad}: accepted are -1 to {self.num_slots - 1}"
            )
        if self.shared_prefix < 0 or self.shared_prefix % self.page_size:
            raise ValueError(
                f"shared_prefix is {self.shared_prefix}: accepted are multiples of page_size "
                f"{self.page_size} from 0"
            )


class MaskLayout(Typed, frozen=True, kw_only=True):
    """How a builder that writes a mask is asked to lay it out.

    `slack` cells follow the defined ones (a buffer sized for a larger batch). Where `fill_prefix`
    is false the prefix cells of a FULL_MASK are undefined and must not be read.
    """

    mode: MaskMode = MaskMode.FULL_MASK
    slack: int = 0
    fill_prefix: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.slack <= MAX_SLACK:
            raise ValueError(f"slack is {self.slack}: accepted are 0 to {MAX_SLACK}")
