"""Probes 3 and 4: random data for the bound, with poison where nothing may be read.

The same data are laid twice, with two different fills of everything no row may read: slots that
nobody holds, page tails, stale contents, padded rows. Outputs must come out bitwise equal. Poison
is large but finite where a legal tile kernel may multiply it by an exact 0; NaN lies only in pages
that no table names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.generate.data import LogicalData, normal
from treeproof.properties.probes.launch import Contents, zeros
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
    k = _poison(scene, shape.head_dim, _FREE_K, fill)
    v = _poison(scene, shape.v_head_dim, _FREE_V, fill)
    q = torch.zeros(
        len(scene.rows), shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    rows, homes = scene.node_rows, scene.row_slot[scene.node_rows]
    there = scene.prefix_columns
    held = (there.slot >= 0).nonzero()[:, 0]
    columns, index = there.slot[held], there.column[held]
    asked, own = torch.cat(data.q), torch.cat(data.k_tree)
    far = torch.cat(data.k_prefix)[held]
    if shape.rotary is not None:
        turn = frequencies(shape.rotary, shape.head_dim, scene.device)
        asked, own = (rotate(t, x.positions[rows], turn) for t in (asked, own))
        far = rotate(far, index, turn)
    q[rows] = asked
    k[homes], v[homes] = own, torch.cat(data.v_tree)
    # A slot that requests share holds the same numbers for all of them.
    k[columns], v[columns] = far, torch.cat(data.v_prefix)[held]
    stale = 0.5 * fill.scale
    stale_k, stale_v = torch.full_like(k[0], stale), torch.full_like(v[0], -stale)
    return Contents(q, k, v, stale_k, stale_v, own_layer=True)


def _poison(scene: Scene, width: int, word: int, fill: Fill) -> Tensor:
    """(num_slots, Hkv, width): poison everywhere; what is held is laid over it."""
    free = zeros(scene, width)
    heads = free.shape[1]
    lanes = torch.arange(heads * width, device=scene.device)
    pattern = normal(scene.case.seed, word, lanes).reshape(heads, width) * fill.scale
    free += pattern.to(scene.dtype)
    if fill.nan:
        free[scene.unnamed] = torch.nan
    return free
