"""Probes 3 and 4: random data for the bound, with poison where nothing may be read.

The same data are laid twice, with two different fills of everything no row may read: slots that
nobody holds, page tails, stale contents, padded rows. Outputs must come out bitwise equal. Poison
is large but finite where a legal tile kernel may multiply it by an exact 0; NaN lies only in pages
that no table names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.generate.data import LogicalData, normal
from treeproof.properties.probes.launch import Contents
from treeproof.properties.probes.rotary import frequencies, rotate
from treeproof.properties.scene import Scene

_FREE_K, _FREE_V = 401, 409  # address words of the poison
_LARGE = 1024.0
"""Against scores of a few tens, a key this large takes the whole softmax if it is read at all."""


@dataclass(frozen=True)
class Fill:
    """How the forbidden memory is filled: scale of the poison, NaN in unnamed pages or not."""

    scale: float
    nan: bool


QUIET = Fill(1.0, nan=False)
LOUD = Fill(_LARGE, nan=True)


def contents(scene: Scene, x: VerifyInput, data: LogicalData, fill: Fill) -> Contents:
    """Logical data laid out by the ledger; rotary by `x.positions` for the verify rows."""
    shape = scene.case.shape
    slots = scene.case.layout.num_slots
    # What is held is laid over it.
    k, v = (_poison(scene, slots, pattern, fill) for pattern in _patterns(scene))
    q = torch.zeros(
        scene.num_rows, shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    rows, homes = scene.node_rows, scene.row_slot[scene.node_rows]
    there = scene.prefix_columns
    asked, own = torch.cat(data.q), torch.cat(data.k_tree)
    far, far_v = torch.cat(data.k_prefix), torch.cat(data.v_prefix)
    if not scene.ledger.apart:
        present = (there.slot >= 0).nonzero()[:, 0]
        there, far, far_v = there.of(present), far[present], far_v[present]
    if shape.rotary is not None:
        turn = frequencies(shape.rotary, shape.head_dim, scene.device)
        asked, own = (rotate(t, x.positions[rows], turn) for t in (asked, own))
        far = rotate(far, there.column, turn)
    q.index_copy_(0, rows, asked)
    # A slot that requests share holds the same numbers for all of them.
    for held, tree, prefix in ((k, own, far), (v, torch.cat(data.v_tree), far_v)):
        held.index_copy_(0, homes, tree)
        held.index_copy_(0, there.slot, prefix)
    return Contents(q, k, v, *_stale(k, v, fill), own_layer=True)


def over(scene: Scene, laid: Contents, fill: Fill) -> Contents:
    """The same data over another fill."""
    k, v = (
        held.index_copy(0, scene.free, _poison(scene, len(scene.free), pattern, fill, scene.free))
        for held, pattern in zip((laid.k, laid.v), _patterns(scene), strict=True)
    )
    stale_k, stale_v = _stale(k, v, fill)
    return replace(laid, k=k, v=v, stale_k=stale_k, stale_v=stale_v)


def _stale(k: Tensor, v: Tensor, fill: Fill) -> tuple[Tensor, Tensor]:
    stale = 0.5 * fill.scale
    return torch.full_like(k[0], stale), torch.full_like(v[0], -stale)


def _poison(
    scene: Scene, slots: int, pattern: Tensor, fill: Fill, of: Tensor | None = None
) -> Tensor:
    """(slots, Hkv, width): poison in every slot, or in those `of` (slots,)."""
    poison = (pattern * fill.scale).to(scene.dtype).repeat(slots, 1, 1)
    if not fill.nan:
        return poison
    unnamed = scene.unnamed if of is None else scene.unnamed[of]
    return poison.masked_fill_(unnamed[:, None, None], torch.nan)


@lru_cache(maxsize=2)
def _patterns(scene: Scene) -> tuple[Tensor, Tensor]:
    """(Hkv, D) and (Hkv, Dv) float64: poison of K and of V, in every slot alike."""
    shape = scene.case.shape
    widths = [shape.num_kv_heads * lanes for lanes in (shape.head_dim, shape.v_head_dim)]
    words = scene.on_device(np.array([[_FREE_K], [_FREE_V]]))
    drawn = normal(scene.case.seed, words, torch.arange(max(widths), device=scene.device))
    k, v = (of[:width] for of, width in zip(drawn, widths, strict=True))
    return k.view(shape.num_kv_heads, -1), v.view(shape.num_kv_heads, -1)
