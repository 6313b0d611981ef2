"""Launching the attention kernels: sizes of tiles, strides, and what a layer adds to the scores.

How many programs there are, and how much each is given at most, shapes decide: a launch can be captured,
and replayed on whatever its tables hold then. `require_*` ask the device, before it is planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.backends.kernels.launching import at_once
from treeproof.backends.kernels.linked import linked_attention
from treeproof.backends.kernels.masked import masked_attention
from treeproof.backends.kernels.merging import merge_parts
from treeproof.backends.kernels.paged import paged_attention
from treeproof.backends.kernels.shared import shared_attention
from treeproof.backends.kernels.stages import as_integers, built, mask_cells, owners
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import VerifyInput

_FAR = 1 << 30
"""Keys of a window where there is none."""


@dataclass(frozen=True)
class Layer:
    """What every attention kernel is told of a launch."""

    x: VerifyInput
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor

    @property
    def sinks(self) -> Tensor:
        """A kernel without sinks is given any tensor in their place, and does not read it."""
        return self.q if self.x.sinks is None else self.x.sinks

    @property
    def numbers(self) -> tuple[float, float]:
        return self.x.shape.score_scale, self.x.shape.softcap or 0.0

    @property
    def window(self) -> int:
        return self.x.shape.window or _FAR

    @property
    def strides(self) -> tuple[int, ...]:
        return *self.q.stride()[:2], *self.k_cache.stride()[:2], *self.v_cache.stride()[:2]

    def constants(self, lines: int, units: int) -> dict[str, Any]:
        """Compile-time values for `units` units of at most `lines` lines each."""
        shape = self.x.shape
        lanes = triton.next_power_of_2(max(shape.head_dim, shape.v_head_dim))
        # Matrix units take 16 lines and lanes at least, which the interpreter need not fill.
        least = 1 if interpreted() else 16
        # Tiles of queries, keys and values fit on the chip together. Products of float32 are no work
        # of matrix units but unrolled, and large ones take a minute to compile.
        most = 16 if self.q.dtype is torch.float32 else max(16, min(64, (1 << 13) // lanes))
        keys = 64 if interpreted() else most
        block_m = max(least, min(most, triton.next_power_of_2(lines)))
        return {
            "KV_HEADS": shape.num_kv_heads,
            "GROUP": shape.group_size,
            "D": shape.head_dim,
            "DV": shape.v_head_dim,
            "CAPPED": shape.softcap is not None,
            "UPCAST": interpreted(),
            "UNITS": at_once(units, max(block_m, keys) * lanes),
            "BLOCK_M": block_m,
            "BLOCK_N": keys,
            "BLOCK_D": max(least, triton.next_power_of_2(shape.head_dim)),
            "BLOCK_DV": max(least, triton.next_power_of_2(shape.v_head_dim)),
        }

    def by_request(self) -> tuple[int, int, dict[str, Any]]:
        """Blocks of lines of the request with most rows, units in all, compile-time values."""
        (index,) = built(self.x, "retrieve_index").values()
        most = index.shape[1] * self.x.shape.group_size
        heads = len(self.x.seq_lens) * self.x.shape.num_kv_heads
        constants = self.constants(most, heads)
        blocks = triton.cdiv(most, constants["BLOCK_M"])
        return blocks, blocks * heads, constants

    def blank(self, *leading: int, partial: bool = False) -> tuple[Tensor, Tensor]:
        """Uninitialised out (*leading, T, Hq, Dv) and float32 lse (*leading, T, Hq)."""
        lines = (*leading, *self.q.shape[:2])
        dtype = torch.float32 if partial else self.q.dtype
        out = self.q.new_empty(*lines, self.x.shape.v_head_dim, dtype=dtype)
        return out, self.q.new_empty(lines, dtype=torch.float32)


def require_mask(x: VerifyInput) -> None:
    """Raises ValueError where the mask is not built or too short: a kernel sees no end of its buffers."""
    mask, mask_indptr = built(x, "custom_mask", "mask_indptr").values()
    cells = mask_cells(x.mask_mode, x.qo_indptr.diff(), x.seq_lens)
    needed = int((mask_indptr[:-1] + cells).max())
    if mask.numel() < needed:
        raise ValueError(f"custom_mask holds {mask.numel()} cells: {needed} are needed")


def require_lists(x: VerifyInput) -> None:
    """Raises ValueError where the lists are not built, or end behind what there is."""
    indptr, indices = built(x, "kv_indptr", "kv_indices").values()
    end, slots = int(indptr[-1]), indices.numel()
    if end > slots:
        raise ValueError(f"kv_indptr ends at {end}, and kv_indices holds {slots} slots")


def masked(layer: Layer) -> tuple[Tensor, Tensor]:
    """All rows under `custom_mask`; out (T, Hq, Dv), natural lse (T, Hq) without the sink."""
    x = layer.x
    mask, mask_indptr = built(x, "custom_mask", "mask_indptr").values()
    out, lse = layer.blank()
    blocks, units, constants = layer.by_request()
    masked_attention[triton.cdiv(units, constants["UNITS"]),](
        layer.q, layer.k_cache, layer.v_cache, out, lse, as_integers(mask), mask_indptr,
        x.seq_lens, x.qo_indptr, x.positions, x.out_cache_loc, x.request_slots, x.req_to_token,
        layer.sinks, blocks, units, *layer.numbers, layer.window, *layer.strides,
        x.req_to_token.stride(0),
        PACKED=x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING,
        PREFIXED=x.mask_mode is MaskMode.FULL_MASK,
        HAS_SINKS=x.sinks is not None,
        **constants,
    )  # fmt: skip
    return out, lse


def linked(layer: Layer) -> tuple[Tensor, Tensor]:
    """All rows along `retrieve_parent_token`; results as those of `masked`."""
    x, out_lse = layer.x, layer.blank()
    (parents,) = built(x, "retrieve_parent_token").values()
    units = len(layer.q) * x.shape.num_kv_heads
    constants = layer.constants(x.shape.group_size, units)
    linked_attention[triton.cdiv(units, constants["UNITS"]),](
        layer.q, layer.k_cache, layer.v_cache, *out_lse, parents, owners(x.qo_indptr, len(layer.q)), x.qo_indptr,
        x.seq_lens, x.out_cache_loc, x.request_slots, x.req_to_token, layer.sinks, units,
        *layer.numbers, layer.window, *layer.strides, parents.stride(0), x.req_to_token.stride(0),
        HAS_SINKS=x.sinks is not None,
        **constants,
    )  # fmt: skip
    return out_lse


def shared(layer: Layer) -> tuple[Tensor, Tensor]:
    """All rows of request b over the first `cache_seqlens[b]` keys of `page_table[b]`, for a merge:
    out (T, Hq, Dv) in float32, lse (T, Hq), no sink among them."""
    x, out_lse = layer.x, layer.blank(partial=True)
    page_table, cache_seqlens = built(x, "page_table", "cache_seqlens").values()
    blocks, units, constants = layer.by_request()
    shared_attention[triton.cdiv(units, constants["UNITS"]),](
        layer.q, layer.k_cache, layer.v_cache, *out_lse, page_table, cache_seqlens, x.qo_indptr,
        blocks, units, *layer.numbers, *layer.strides, page_table.stride(0),
        PAGE=x.kv.page_size,
        **constants,
    )  # fmt: skip
    return out_lse


@dataclass(frozen=True)
class Lists:
    """Keys of each row of a launch: `kv_indices` from `kv_indptr[i] + kv_start[i]` to `kv_indptr[i+1]`.

    Before them come the first `cache_seqlens[b]` keys of `page_table[b]`, where there is one.
    """

    kv_indptr: Tensor
    kv_indices: Tensor
    kv_start: Tensor
    page_table: Tensor | None = None
    cache_seqlens: Tensor | None = None

    @classmethod
    def of(cls, x: VerifyInput, *, paged: bool) -> Lists:
        """Raises ValueError where one was not built."""
        names = ("kv_indptr", "kv_indices", "kv_start")
        return cls(**built(x, *names, *(("page_table", "cache_seqlens") if paged else ())))


def most_keys(x: VerifyInput) -> int:
    """Keys of a row at most: its request has no more columns, and a window is no wider."""
    return min(x.req_to_token.shape[1], x.shape.window or _FAR)


def paged(
    layer: Layer, lists: Lists, *, splits: int = 1, partial: bool = False
) -> tuple[Tensor, Tensor]:
    """Each row over its keys, in `splits` parts of equal length.

    `partial`: results for a merge, out (splits, T, Hq, Dv) in float32 and lse (splits, T, Hq), no
    sink among them; else, of one split, as those of `masked`.
    """
    x = layer.x
    out, lse = layer.blank(splits, partial=partial)
    units = splits * len(layer.q) * x.shape.num_kv_heads
    constants = layer.constants(x.shape.group_size, units)
    table, lengths = lists.page_table, lists.cache_seqlens
    paged_attention[triton.cdiv(units, constants["UNITS"]),](
        layer.q, layer.k_cache, layer.v_cache, out, lse,
        lists.kv_indices if table is None else table, lists.kv_indptr if lengths is None else lengths,
        owners(x.qo_indptr, len(layer.q)), lists.kv_indices, lists.kv_indptr, lists.kv_start, layer.sinks,
        len(layer.q), units, splits,
        *layer.numbers, *layer.strides, 0 if table is None else table.stride(0),
        PAGE=0 if table is None else x.kv.page_size,
        HAS_SINKS=x.sinks is not None and not partial,
        **constants,
    )  # fmt: skip
    return (out, lse) if partial else (out[0], lse[0])


def merge(
    parts: Tensor,
    part_lse: Tensor,
    dtype: torch.dtype,
    sinks: Tensor | None,
    *,
    base_2: bool = False,
) -> tuple[Tensor, Tensor]:
    """Of `parts` (n, ..., Hq, Dv) with `part_lse` (n, ..., Hq): out (..., Hq, Dv) in `dtype`, lse.

    Parts and lse are in base 2 or natural alike; `sinks` (Hq,) go with natural ones only.
    """
    if base_2 and sinks is not None:
        raise ValueError("sinks are natural logits: merge natural parts with them")
    out = parts.new_empty(parts.shape[1:], dtype=dtype)
    lse = part_lse.new_empty(part_lse.shape[1:])
    lanes = triton.next_power_of_2(parts.shape[-1])
    together = at_once(lse.numel(), lanes)
    merge_parts[triton.cdiv(lse.numel(), together),](
        parts, part_lse, out, lse, part_lse if sinks is None else sinks, lse.shape[-1], lse.numel(),
        DV=parts.shape[-1],
        PARTS=len(parts),
        BASE_2=base_2,
        HAS_SINKS=sinks is not None,
        UNITS=together,
        BLOCK_DV=lanes,
    )  # fmt: skip
    return out, lse
