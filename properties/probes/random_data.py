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
    shape, case = scene.case.shape, scene.case
    k = _poison(scene, shape.head_dim, _FREE_K, fill)
    v = _poison(scene, shape.v_head_dim, _FREE_V, fill)
    q = torch.zeros(
        len(scene.rows), shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    turn = None if shape.rotary is None else frequencies(shape.rotary, shape.head_dim, scene.device)
    for b, request in enumerate(case.requests):
        nodes = torch.tensor(request.node_of_row, device=scene.device)
        start = case.qo_indptr[b]
        rows = slice(start, start + request.num_nodes)
        q_b = data.q[b].to(scene.device)[nodes]
        k_b = data.k_tree[b].to(scene.device)[nodes]
        if turn is not None:
            q_b = rotate(q_b, x.positions[rows], turn)
            k_b = rotate(k_b, x.positions[rows], turn)
        q[rows] = q_b
        own = torch.tensor(scene.ledger.row_slots(b), device=scene.device)
        k[own], v[own] = k_b, data.v_tree[b].to(scene.device)[nodes]
        columns = torch.tensor(
            scene.ledger.columns[b][: request.prefix_len], dtype=torch.int64, device=scene.device
        )
        held = columns >= 0
        k_prefix = data.k_prefix[b].to(scene.device)
        if turn is not None:
            index = torch.arange(request.prefix_len, device=scene.device)
            k_prefix = rotate(k_prefix, index, turn)
        k[columns[held]] = k_prefix[held]
        v[columns[held]] = data.v_prefix[b].to(scene.device)[held]
    stale = 0.5 * fill.scale
    stale_k, stale_v = torch.full_like(k[0], stale), torch.full_like(v[0], -stale)
    return Contents(q, k, v, stale_k, stale_v, own_layer=True)


def _poison(scene: Scene, width: int, word: int, fill: Fill) -> Tensor:
    """(num_slots, Hkv, width): poison everywhere; what is held is laid over it."""
    free = zeros(scene, width)
    heads = free.shape[1]
    lanes = torch.arange(heads * width, dtype=torch.int64)
    pattern = normal(scene.case.seed, word, lanes).reshape(heads, width) * fill.scale
    free += pattern.to(device=scene.device, dtype=scene.dtype)
    if fill.nan:
        free[scene.unnamed] = torch.nan
    return free
