"""Probe 2, chorus: keys of one group answer a query together, so one launch asks about all of them.

Every tagged slot belongs to one of G groups, drawn anew for each launch and KV head. Its K is the
group's row of a Hadamard matrix, tiled over the lanes, so groups are exactly orthogonal; its V is a
code of its own. A query is one group's row made large: the output is the mean of the V codes of the
visible keys of that group, and of nothing else. A kernel that scores one slot and reads another, or
lets a hidden key in, changes a mean. Keys that are not tagged hold zeros.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from treeproof.contract.capabilities import UNIT_ROUNDOFF, Numerics
from treeproof.contract.inputs import VerifyInput
from treeproof.generate.data import hash_tensor
from treeproof.properties.bound import partial_rounding
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import AttendCall, Contents, outputs
from treeproof.properties.scene import Scene

_GAP = 40.0
"""Score of the asked group above all others, which then weigh below 1e-13 at 10,000 keys."""

_DRAWINGS = 2
"""Independent drawings of the groups: two keys that share a group in one part in the other."""

_WORD = 419  # address word of the drawings


def tolerance(dtype: str, numerics: Numerics) -> float:
    """Rounding of weights, of their sum and of the output, all of numbers up to 1; and 1e-3 spare.

    Partial results that are declared come on top, rounded at each merge. One key more or less
    among m moves some lane of the mean by about 1 / (m + 1).
    """
    return 4 * UNIT_ROUNDOFF[dtype] + partial_rounding(dtype, numerics) + 1e-3


def listen(
    attend: AttendCall,
    scene: Scene,
    x: VerifyInput,
    tagged: Tensor,
    visible: Tensor,
    keys: Tensor,
    numerics: Numerics,
) -> Tensor:
    """Ask every group of every drawing; (T,) bool: the means of the row were all right.

    `tagged` (n,) int64: slots with a key to be asked about. `visible` (T, n) float64: 1 where the
    row must read that slot. `keys` (T,) float64: all keys the row must read, tagged or not.
    """
    shape = scene.case.shape
    groups = 8 if shape.num_q_heads >= 4 else 4
    v_code = sign_codes(
        scene.case.layout.num_slots, shape.num_kv_heads, shape.v_head_dim, 2, scene.device
    )
    # Untagged keys answer nothing; memory that nobody holds answers loudly.
    speaks = ~scene.owned
    speaks[tagged] = True
    v = torch.where(speaks[:, None, None], v_code, 0.0)
    code = v[tagged].double()  # (n, Hkv, Dv)
    lanes = shape.head_dim // groups * groups
    size = _query_size(lanes, shape.score_scale)
    others = _weight_of_others(size * lanes * shape.score_scale, shape.softcap)
    off = torch.zeros(len(scene.rows), dtype=torch.float64, device=scene.device)
    kv_head = torch.arange(shape.num_q_heads, device=scene.device) // shape.group_size
    head = torch.arange(shape.num_q_heads, device=scene.device)
    questions = [
        (group_of_slots(scene, groups, drawing), (first + head) % groups)
        for drawing in range(_DRAWINGS)
        for first in range(0, groups, shape.num_q_heads)
    ]

    every_group = torch.arange(groups, device=scene.device)
    rows_of_groups = _keys(every_group, groups, shape.head_dim).to(scene.dtype)
    v = v.to(scene.dtype)

    def asking(question: tuple[Tensor, Tensor]) -> Contents:
        member, asked = question  # (num_slots, Hkv), (Hq,)
        k = rows_of_groups[member] * speaks[:, None, None]
        q = _keys(asked, groups, shape.head_dim) * size
        return Contents(
            q.expand(len(scene.rows), -1, -1).to(scene.dtype).contiguous(),
            k,
            v,
            k[0],
            -v[0],
        )

    outs = outputs(attend, scene, x, map(asking, questions), "chorus")
    for (member, asked), out in zip(questions, outs, strict=True):
        right = _means(member[tagged], asked, kv_head, code, visible, keys, others)
        difference = (out.double() - right).abs().flatten(1).amax(1)
        off = torch.maximum(off, difference)
    return off <= tolerance(shape.dtype, numerics)


def group_of_slots(scene: Scene, groups: int, drawing: int) -> Tensor:
    """(num_slots, Hkv) group of each slot."""
    slots = torch.arange(scene.case.layout.num_slots, device=scene.device)[:, None]
    heads = torch.arange(scene.case.shape.num_kv_heads, device=scene.device)
    return hash_tensor(scene.case.seed, _WORD, drawing, slots, heads) % groups


def _keys(group: Tensor, groups: int, head_dim: int) -> Tensor:
    """(..., head_dim) float32: row `group` of the Hadamard matrix, tiled; left-over lanes are 0."""
    lane = torch.arange(head_dim, device=group.device)
    common = group[..., None] & (lane % groups)
    parity = (common ^ (common >> 1) ^ (common >> 2)) & 1
    return torch.where(lane < head_dim // groups * groups, 1.0 - 2.0 * parity, 0.0)


def _query_size(lanes: int, scale: float) -> float:
    """Power of two that gives the asked group a score of at least _GAP."""
    return 2.0 ** math.ceil(math.log2(_GAP / (lanes * scale)))


def _weight_of_others(score: float, softcap: float | None) -> float:
    """What a key that scores 0 weighs against one of the asked group."""
    return math.exp(-score if softcap is None else -softcap * math.tanh(score / softcap))


def _means(
    member: Tensor,
    asked: Tensor,
    kv_head: Tensor,
    code: Tensor,
    visible: Tensor,
    keys: Tensor,
    others: float,
) -> Tensor:
    """(T, Hq, Dv) float64: mean V of the visible members of each head's asked group.

    All other keys count as well, `others` times as much: next to nothing but under a small softcap,
    or where a row sees no member at all and the mean is over everything it sees.
    """
    heard = member[:, kv_head] == asked  # (n, Hq)
    chosen = visible[:, :, None] * heard  # (T, n, Hq)
    count = chosen.sum(1)  # (T, Hq)
    voices = code[:, kv_head]  # (n, Hq, Dv)
    among = torch.einsum("tnh,nhd->thd", chosen, voices)
    everything = torch.einsum("tn,nhd->thd", visible, voices)
    total = count + others * (keys[:, None] - count)
    alone = torch.where(total > 0, total, 1.0)  # padded rows see nothing
    return (among + others * (everything - among)) / alone[..., None]
