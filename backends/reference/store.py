"""Writing the verify rows' own K and V into the cache: the one write a backend may borrow."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.layout import KVLayout


def store_kv(x: VerifyInput, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Write row i of `k` (T, Hkv, D) and `v` (T, Hkv, Dv) to slot `x.out_cache_loc[i]`, in place.

    `k_cache` (num_slots, Hkv, D) and `v_cache` (num_slots, Hkv, Dv), or in pages where `x.kv.storage`
    is HND, have the dtypes of `k` and `v`, or hold float8_e4m3fn or int8 codes of them by `x.k_scale` and `x.v_scale`. Rows whose slot is -1
    (padding) are not written; one row at least has a slot. The device is asked nothing, so that a launch
    can be captured. Raises ValueError where the cache is quantised and a scale is None.
    """
    note("store")
    home = x.out_cache_loc >= 0
    # How many rows have a slot is not known here: the others write the first of them once more.
    row = torch.where(home, torch.arange(len(home), device=home.device), home.int().argmax())
    at = at_slots(x.out_cache_loc[row], x.kv)
    k_cache[at] = _coded("k_scale", k[row], x.k_scale, k_cache.dtype)
    v_cache[at] = _coded("v_scale", v[row], x.v_scale, v_cache.dtype)


def at_slots(slots: Tensor, kv: KVLayout) -> tuple[Tensor | slice, ...]:
    """The index of `slots` (n,) in a cache, whose rows there are (n, Hkv, lanes)."""
    if kv.storage != "HND":
        return (slots,)
    return slots // kv.page_size, slice(None), slots % kv.page_size


def _coded(name: str, rows: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The nearest codes, `rows` (n, Hkv, lanes) being about `codes * scale`; beyond the last: the last."""
    if dtype == rows.dtype:
        return rows
    if scale is None:
        raise ValueError(f"a cache of {dtype} needs {name}, which is None")
    codes = rows.float() / scale[:, None]
    if dtype == torch.int8:
        return codes.round().clamp(-127, 127).to(dtype)
    return codes.clamp(-448, 448).to(dtype)  # this conversion rounds to the nearest itself
