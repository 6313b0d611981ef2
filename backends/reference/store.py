"""Writing the verify rows' own K and V into the cache: the one write a backend may borrow."""

from __future__ import annotations

from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import VerifyInput


def store_kv(x: VerifyInput, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Write row i of `k` (T, Hkv, D) and `v` (T, Hkv, Dv) to slot `x.out_cache_loc[i]`, in place.

    `k_cache` (num_slots, Hkv, D) and `v_cache` (num_slots, Hkv, Dv) have the dtypes of `k` and `v`.
    Rows whose slot is -1 (padding) are not written.
    """
    note("store")
    home = x.out_cache_loc >= 0
    slots = x.out_cache_loc[home]
    k_cache[slots] = k[home]
    v_cache[slots] = v[home]
