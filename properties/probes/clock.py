"""The clock: which position a row's query was rotated to, read from the outputs.

One plane of the head is rotated by 2 pi / 256 a position. The reference key (the last prefix key,
or the root where there is no prefix) holds a unit vector there, every other key is zero, so the
reference's weight against all others is exp(g cos(angle)), which gives the angle back. Half of the
query heads start a quarter turn behind, which gives the sine and so the whole circle. Queries are
turned by their distance from the reference instead of both by their positions: that is the same, and
any cache can hold a unit vector that is not turned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.properties.probes.launch import AttendCall, Contents, launch, zeros
from treeproof.properties.probes.rotary import rotate
from treeproof.properties.scene import Scene

PERIOD = 256
"""Positions to a full turn: neighbours are 0.0245 rad apart, half-precision reads 0.005."""

_GAIN = 4.0
_REFERENCE, _OTHERS, _STRANGE = 0, 1, 2


def read_clock(
    attend: AttendCall, scene: Scene, positions: Tensor, x: VerifyInput, others: Tensor
) -> list[int | None]:
    """Position of each row of the launch relative to its reference key, modulo 256.

    `positions` (T,) is what the harness rotates by: what the builder said. `x` is what the launch
    gets. `others` (T,) is how many keys besides the reference the row was measured to read. None: not
    determined, because the row does not read the reference, or nothing else.
    """
    heads = scene.case.shape.num_q_heads
    phases = [(0.0, slice(0, None, 2)), (-math.pi / 2, slice(1, None, 2))]
    scores: list[Tensor] = []
    if heads == 1:
        scores = [
            _scores(attend, scene, positions, x, others, [phase])[:, 0] for phase, _ in phases
        ]
    else:
        every = [phases[h % 2][0] for h in range(heads)]
        all_heads = _scores(attend, scene, positions, x, others, every)
        scores = [all_heads[:, where] for _, where in phases]
        if any(bool(((s - s[:, :1]).abs() > 0.5).any()) for s in scores):
            return [None] * scene.num_rows
        scores = [s[:, 0] for s in scores]
    cosine, sine = scores
    turn = torch.atan2(sine, cosine) / (2 * math.pi) * PERIOD
    strength = torch.hypot(sine, cosine)
    # A right rotation keeps the length; anything else is no reading of this clock.
    fits = (strength - _GAIN).abs() < 0.5
    return [
        round(value) % PERIOD if ok and math.isfinite(value) else None
        for value, ok in zip(turn.tolist(), fits.tolist(), strict=True)
    ]


def _scores(
    attend: AttendCall,
    scene: Scene,
    positions: Tensor,
    x: VerifyInput,
    others: Tensor,
    phases: list[float],
) -> Tensor:
    """(T, heads) float64: the reference key's score, from its weight against all others."""
    shape = scene.case.shape
    frequency = torch.zeros(shape.head_dim // 2, dtype=torch.float64, device=scene.device)
    frequency[0] = 2 * math.pi / PERIOD
    half = shape.head_dim // 2
    q = torch.zeros(
        scene.num_rows, shape.num_q_heads, shape.head_dim, dtype=torch.float64, device=scene.device
    )
    for head, phase in enumerate(phases):
        q[:, head, 0] = _GAIN / shape.score_scale * math.cos(phase)
        q[:, head, half] = _GAIN / shape.score_scale * math.sin(phase)
    k, v = zeros(scene, shape.head_dim), zeros(scene, shape.v_head_dim)
    v[..., _OTHERS] = scene.owned.to(v.dtype)[:, None]
    v[..., _STRANGE] = (~scene.owned).to(v.dtype)[:, None]
    distance = positions.long().clone()
    for b, slot, position in _references(scene, positions):
        k[slot, :, 0] = 1
        v[slot, :, _OTHERS], v[slot, :, _REFERENCE] = 0, 1
        start = scene.case.qo_indptr[b]
        distance[start : start + scene.case.requests[b].num_rows] -= position
    q = rotate(q, distance, frequency).to(scene.dtype)
    stale_v = torch.zeros_like(v[0])
    stale_v[:, _STRANGE] = 1
    done = launch(attend, scene, x, Contents(q, k, v, k[0] * 0, stale_v), "clock")
    out = done.attended.out.double()
    ratio = out[..., _REFERENCE] / out[..., _OTHERS] * others.to(out.device)[:, None]
    score = ratio.log()[:, : len(phases)].cpu()
    if shape.softcap is not None:
        score = (score / shape.softcap).clamp(-1, 1).atanh() * shape.softcap
    return score


def _references(scene: Scene, positions: Tensor) -> list[tuple[int, int, Tensor]]:
    """Request, slot and position of each reference key.

    A prefix key that other requests share would be a second reference to them: the root then.
    """
    found = []
    shared = scene.case.layout.shared_prefix if len(scene.case.requests) > 1 else 0
    for b, request in enumerate(scene.case.requests):
        if request.prefix_len > shared:
            last = request.prefix_len - 1
            position = torch.tensor([last], dtype=torch.int64, device=scene.device)
            found.append((b, scene.ledger.columns[b][last], position))
        else:
            root = scene.case.qo_indptr[b]
            found.append((b, scene.ledger.row_slots(b)[0], positions[root : root + 1].long()))
    return [(b, slot, position) for b, slot, position in found if slot >= 0]
