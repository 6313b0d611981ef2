"""Probe 2, spike: which key was scored where a value was read.

Every slot holds a K code and a V code (another one in every KV head). A query is one K code made
large, so its softmax is all but one at that key, and the output is that key's V code, to the bit of
a sign. A kernel that takes K from one slot and V from another passes tomography and fails here.
One launch serves all rows and all query heads, each aimed at another key.

A softcap leaves no more than twice its size between any two scores. There one lane of every key is
1 and takes so much off that the aimed key scores above 0 and every other one below it.
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
    bits, lanes = bits_needed(slots), _code_lanes(scene)
    k_code = sign_codes(slots, shape.num_kv_heads, lanes, 1, scene.device)
    k_code = torch.nn.functional.pad(k_code, (0, shape.head_dim - lanes), value=1.0)
    v_code = sign_codes(slots, shape.num_kv_heads, shape.v_head_dim, 2, scene.device)
    size = _query_size(lanes, bits, shape.score_scale, shape.softcap)
    place, launches = _place(aims, heads)
    where = torch.tensor(place, dtype=torch.int64, device=scene.device).reshape(-1, 3)
    target = torch.tensor([aim.slot for aim in aims], dtype=torch.int64, device=scene.device)
    kv_head = where[:, 2] // shape.group_size
    found = torch.zeros(len(aims), dtype=torch.bool, device=scene.device)
    k, v = k_code.to(scene.dtype), v_code.to(scene.dtype)
    for number in range(launches):
        now = where[:, 0] == number
        q = torch.zeros(
            scene.num_rows, heads, shape.head_dim, dtype=scene.dtype, device=scene.device
        )
        aimed = k[target[now], kv_head[now]] * size
        aimed[:, lanes:] *= -(lanes - _least(lanes, bits))
        q[where[now, 1], where[now, 2]] = aimed
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


def can_aim(scene: Scene) -> bool:
    """Whether there are lanes enough to tell every key apart from all others."""
    return _code_lanes(scene) >= bits_needed(scene.case.layout.num_slots)


def _code_lanes(scene: Scene) -> int:
    """Lanes of a key's code; under a softcap one lane is taken for what is taken off."""
    shape = scene.case.shape
    return shape.head_dim if shape.softcap is None else shape.head_dim - 1


def _least(lanes: int, bits: int) -> int:
    """Lanes that any two codes differ in, at least."""
    return max(1, lanes // bits)


def _query_size(lanes: int, bits: int, scale: float, softcap: float | None) -> float:
    """Power of two that puts the aimed key's score _GAP above the next.

    Each lane that codes differ in takes 2 size scale off: the score of the aimed key is half of the
    gap, and the next is as far below 0, where a softcap asks for that. Scores the size of the cap
    are three quarters of it afterwards, and larger ones hardly more.
    """
    half = _GAP / 2 if softcap is None else max(_GAP / 2, softcap)
    return 2.0 ** math.ceil(math.log2(half / (_least(lanes, bits) * scale)))


def _place(aims: Sequence[Aim], heads: int) -> tuple[list[tuple[int, int, int]], int]:
    """(launch, row, query head) of each aim. Heads rotate with the row, so all of them serve."""
    used: dict[int, int] = {}
    place = []
    for aim in aims:
        turn = used.get(aim.row, 0)
        used[aim.row] = turn + 1
        place.append((turn // heads, aim.row, (turn + aim.row) % heads))
    return place, 1 + max((launch for launch, _, _ in place), default=-1)
