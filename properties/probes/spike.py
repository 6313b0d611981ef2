"""Probe 2, spike: which key was scored where a value was read.

Every slot holds a K code and a V code (another one in every KV head). A query is one K code made
large, so its softmax is all but one at that key, and the output is that key's V code, to the bit of
a sign. A kernel that takes K from one slot and V from another passes tomography and fails here.
One launch serves all rows and all query heads, each aimed at another key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treeproof.contract.inputs import VerifyInput
from treeproof.properties.probes.codes import bits_needed, sign_codes
from treeproof.properties.probes.launch import AttendCall, Contents, launch
from treeproof.properties.scene import Scene

_GAP = 30.0
"""Score of the aimed key above every other: all others together weigh below 1e-9 at 10,000 keys."""

_NEAR = 0.25
"""Distance in every lane to count as the key's own value. An average that is not its code is that
near only if seven eighths of at least eight keys agree with it in every bit."""


@dataclass(frozen=True)
class Aim:
    """Row `row` of the launch looks for the key in `slot`."""

    row: int
    slot: int


def hits(attend: AttendCall, scene: Scene, x: VerifyInput, aims: Sequence[Aim]) -> tuple[bool, ...]:
    """For each aim, whether the row's output was the aimed slot's own value."""
    shape = scene.case.shape
    slots = scene.case.layout.num_slots
    heads = shape.num_q_heads
    k_code = sign_codes(slots, shape.num_kv_heads, shape.head_dim, 1, scene.device)
    v_code = sign_codes(slots, shape.num_kv_heads, shape.v_head_dim, 2, scene.device)
    size = _query_size(shape.head_dim, bits_needed(slots), shape.score_scale)
    place, launches = _place(aims, heads)
    where = torch.tensor(place, dtype=torch.int64, device=scene.device).reshape(-1, 3)
    target = torch.tensor([aim.slot for aim in aims], dtype=torch.int64, device=scene.device)
    kv_head = where[:, 2] // shape.group_size
    found = torch.zeros(len(aims), dtype=torch.bool, device=scene.device)
    k, v = k_code.to(scene.dtype), v_code.to(scene.dtype)
    for number in range(launches):
        now = where[:, 0] == number
        q = torch.zeros(
            len(scene.rows), heads, shape.head_dim, dtype=scene.dtype, device=scene.device
        )
        q[where[now, 1], where[now, 2]] = k[target[now], kv_head[now]] * size
        done = launch(
            attend,
            scene,
            x,
            Contents(q, k, v, torch.zeros_like(k[0]), torch.zeros_like(v[0])),
            "spike",
        )
        got = done.attended.out[where[now, 1], where[now, 2]].float()
        found[now] = ((got - v_code[target[now], kv_head[now]]).abs() < _NEAR).all(1)
    return tuple(found.tolist())


def _query_size(head_dim: int, bits: int, scale: float) -> float:
    """Power of two that puts the aimed key's score _GAP above the next.

    Codes differ in at least head_dim // bits lanes, each of which takes 2 size scale off.
    """
    least = max(1, head_dim // bits)
    return 2.0 ** math.ceil(math.log2(_GAP / (2 * least * scale)))


def _place(aims: Sequence[Aim], heads: int) -> tuple[list[tuple[int, int, int]], int]:
    """(launch, row, query head) of each aim. Heads rotate with the row, so all of them serve."""
    used: dict[int, int] = {}
    place = []
    for aim in aims:
        turn = used.get(aim.row, 0)
        used[aim.row] = turn + 1
        place.append((turn // heads, aim.row, (turn + aim.row) % heads))
    return place, 1 + max((launch for launch, _, _ in place), default=-1)
