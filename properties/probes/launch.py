"""One launch of a backend's attend on chosen contents of the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.properties.contract import require_finite, valid_attended
from treeproof.properties.scene import Scene

AttendCall = Callable[[VerifyInput, Tensor, Tensor, Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Contents:
    """What every slot holds once the verify rows are written, and what the rows ask.

    `q` (T, Hq, D); `k` (num_slots, Hkv, D); `v` (num_slots, Hkv, Dv). `stale_k`, `stale_v` (one
    slot's worth, broadcast) lie in the tree's own slots before the launch writes them, and are the
    K and V of padded rows: whoever reads either shows it.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    stale_k: Tensor
    stale_v: Tensor


@dataclass(frozen=True)
class Launched:
    attended: Attended
    q: Tensor
    k: Tensor
    v: Tensor
    k_before: Tensor
    v_before: Tensor
    k_cache: Tensor
    v_cache: Tensor


def launch(
    attend: AttendCall, scene: Scene, x: VerifyInput, contents: Contents, probe: str
) -> Launched:
    """Fill fresh caches, call attend once, check shapes and that real rows are finite."""
    k_before, v_before = contents.k.clone(), contents.v.clone()
    k_before[scene.tree_slots] = contents.stale_k.to(k_before.dtype)
    v_before[scene.tree_slots] = contents.stale_v.to(v_before.dtype)
    rows = scene.row_slot.clamp(min=0)
    k, v = contents.k[rows], contents.v[rows]
    if len(scene.real) < len(scene.rows):
        k[scene.padding] = contents.stale_k.to(k.dtype)
        v[scene.padding] = contents.stale_v.to(v.dtype)
    k_cache, v_cache = k_before.clone(), v_before.clone()
    q = contents.q.clone()
    attended = valid_attended(attend(x, q, k, v, k_cache, v_cache), scene)
    require_finite(attended, scene, probe)
    # A kernel may write every launch into one buffer of its own (a captured graph does).
    lse = None if attended.lse is None else attended.lse.clone()
    attended = replace(attended, out=attended.out.clone(), lse=lse)
    return Launched(attended, q, k, v, k_before, v_before, k_cache, v_cache)


def zeros(scene: Scene, width: int) -> Tensor:
    """(num_slots, Hkv, width) of zeros in the case's dtype."""
    return torch.zeros(
        scene.case.layout.num_slots,
        scene.case.shape.num_kv_heads,
        width,
        dtype=scene.dtype,
        device=scene.device,
    )
