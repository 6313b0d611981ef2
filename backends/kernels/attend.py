"""Launching the attention kernels: sizes of tiles, strides, and what a layer adds to the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.backends.kernels.linked import linked_attention
from treeproof.backends.kernels.masked import masked_attention
from treeproof.backends.kernels.merging import merge_parts
from treeproof.backends.kernels.paged import paged_attention
from treeproof.backends.kernels.stages import as_integers, owners
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
    def strides(self) -> tuple[int, ...]:
        return *self.q.stride()[:2], *self.k_cache.stride()[:2], *self.v_cache.stride()[:2]

    def constants(self, lines: int) -> dict[str, Any]:
        """Compile-time values for tiles of at most `lines` queries of one key-value head."""
        shape = self.x.shape
        wide = max(shape.head_dim, shape.v_head_dim) * self.q.element_size()
        return {
            "GROUP": shape.group_size,
            "D": shape.head_dim,
            "DV": shape.v_head_dim,
            "CAPPED": shape.softcap is not None,
            "HAS_SINKS": self.x.sinks is not None,
            "UPCAST": interpreted(),
            # Matrix units take 16 lines and more; a tile of keys and one of values fit on the chip.
            "BLOCK_M": max(16, min(64, triton.next_power_of_2(lines))),
            "BLOCK_N": 64 if wide <= 256 else 32,
            "BLOCK_D": max(16, triton.next_power_of_2(shape.head_dim)),
            "BLOCK_DV": max(16, triton.next_power_of_2(shape.v_head_dim)),
        }

    def blank(self, *leading: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Uninitialised out (*leading, T, Hq, Dv) and float32 lse (*leading, T, Hq)."""
        lines = (*leading, *self.q.shape[:2])
        out = self.q.new_empty(*lines, self.x.shape.v_head_dim, dtype=dtype)
        return out, self.q.new_empty(lines, dtype=torch.float32)


def masked(layer: Layer) -> tuple[Tensor, Tensor]:
    """All rows under `custom_mask`; out (T, Hq, Dv), natural lse (T, Hq) without the sink."""
    x = layer.x
    if x.custom_mask is None or x.mask_indptr is None:
        raise ValueError("custom_mask and mask_indptr are needed, and were not built")
    out, lse = layer.blank()
    most = int(x.qo_indptr.diff().max()) * x.shape.group_size
    constants = layer.constants(most)
    masked_attention[triton.cdiv(most, constants["BLOCK_M"]), len(x.seq_lens), x.shape.num_kv_heads](
        layer.q, layer.k_cache, layer.v_cache, out, lse, as_integers(x.custom_mask), x.mask_indptr,
        x.seq_lens, x.qo_indptr, x.positions, x.out_cache_loc, x.request_slots, x.req_to_token,
        layer.sinks, *layer.numbers, x.shape.window or _FAR, *layer.strides, *out.stride()[:2],
        x.req_to_token.stride(0),
        PACKED=x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING,
        PREFIXED=x.mask_mode is MaskMode.FULL_MASK,
        **constants,
    )  # fmt: skip
    return out, lse


def linked(layer: Layer, parents: Tensor) -> tuple[Tensor, Tensor]:
    """All rows along `parents` (B, Nmax); results as those of `masked`."""
    x = layer.x
    out, lse = layer.blank()
    linked_attention[len(layer.q), x.shape.num_kv_heads](
        layer.q, layer.k_cache, layer.v_cache, out, lse, parents, owners(x.qo_indptr), x.qo_indptr,
        x.seq_lens, x.out_cache_loc, x.request_slots, x.req_to_token, layer.sinks, *layer.numbers,
        x.shape.window or _FAR, *layer.strides, parents.shape[1], x.req_to_token.stride(0),
        HEADS=x.shape.num_q_heads,
        **layer.constants(x.shape.group_size),
    )  # fmt: skip
    return out, lse


def paged(
    layer: Layer,
    table: Tensor,
    line_begin: Tensor,
    first_key: Tensor,
    last_key: Tensor,
    *,
    page: int = 1,
    splits: int = 1,
    partial: bool = False,
) -> tuple[Tensor, Tensor]:
    """Row i over places `first_key[i]` to `last_key[i]` - 1 of the line at `line_begin[i]` of `table`.

    `table` holds pages of `page` keys. `partial`: results for a merge, out (splits, T, Hq, Dv) in
    float32 and lse (splits, T, Hq), no sink among them; else as those of `masked`.
    """
    x = layer.x
    dtype = torch.float32 if partial else None
    out, lse = layer.blank(splits, dtype=dtype)
    longest = int((last_key - first_key).max())
    constants = layer.constants(x.shape.group_size)
    a_split = triton.cdiv(max(1, longest), splits)
    if partial:
        constants["HAS_SINKS"] = False
    paged_attention[len(layer.q), x.shape.num_kv_heads, splits](
        layer.q, layer.k_cache, layer.v_cache, out, lse, table, line_begin, first_key, last_key,
        layer.sinks, len(layer.q), a_split, *layer.numbers, *layer.strides,
        HEADS=x.shape.num_q_heads, PAGE=page, **constants,
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
    """Of `parts` (n, ..., Hq, Dv) with `part_lse` (n, ..., Hq): out (..., Hq, Dv) in `dtype`, lse."""
    out = parts.new_empty(parts.shape[1:], dtype=dtype)
    lse = part_lse.new_empty(part_lse.shape[1:])
    merge_parts[lse.numel(),](
        parts,
        part_lse,
        out,
        lse,
        part_lse if sinks is None else sinks,
        lse.shape[-1],
        lse.numel(),
        DV=parts.shape[-1],
        PARTS=len(parts),
        BASE_2=base_2,
        HAS_SINKS=sinks is not None,
        BLOCK_DV=triton.next_power_of_2(parts.shape[-1]),
    )
    return out, lse
