"""Probe 2, chorus: keys of one group answer a query together, so one launch asks about all of them.

Every tagged slot belongs to one of G groups, drawn anew for each launch and KV head. Its K is the
group's row of a Hadamard matrix, tiled over the lanes, so groups are exactly orthogonal; its V is a
code of its own. A query is one group's row made large: the output is the mean of the V codes of the
visible keys of that group, and of nothing else. A kernel that scores one slot and reads another, or
lets a hidden key in, changes a mean. Keys that are not tagged hold zeros.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.capabilities import UNIT_ROUNDOFF, Numerics
from treeproof.contract.inputs import VerifyInput
from treeproof.generate.data import hash_tensor
from treeproof.properties.bound import partial_rounding
from treeproof.properties.contract import Finite
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import AttendCall, Contents, Outputs
from treeproof.properties.scene import Scene
from treeproof.properties.wanted import OwnReads, wanted

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
    own: OwnReads,
    numerics: Numerics,
) -> tuple[Tensor, Finite]:
    """Ask every group of every drawing; (T,) bool: the means of the row were all right.

    `tagged` (n,) int64: slots with a key to be asked about. `own`: what rows must read of them. That
    outputs were finite is still to be required.
    """
    shape = scene.case.shape
    groups = 8 if shape.num_q_heads >= 4 else 4
    # Untagged keys answer nothing; memory that nobody holds answers loudly.
    speaks = (~scene.owned).index_fill_(0, tagged, True)
    v = sign_codes(
        scene.case.layout.num_slots, shape.num_kv_heads, shape.v_head_dim, 2, scene.device,
        scene.dtype,
    )  # fmt: skip
    v *= speaks[:, None, None]
    lanes = shape.head_dim // groups * groups
    size = _query_size(lanes, shape.score_scale)
    expected = _Expected(
        scene, own, v, _weight_of_others(size * lanes * shape.score_scale, shape.softcap)
    )
    off = torch.zeros(scene.num_rows, dtype=torch.float64, device=scene.device)
    heads = np.arange(shape.num_q_heads)
    questions = [
        (group_of_slots(scene, groups, drawing), scene.on_device((first + heads) % groups))
        for drawing in range(_DRAWINGS)
        for first in range(0, groups, shape.num_q_heads)
    ]
    keys = _keys(groups, shape.head_dim, scene.device).to(scene.dtype)

    def asking(question: tuple[Tensor, Tensor]) -> Contents:
        member, asked = question  # (num_slots, Hkv), (Hq,)
        k = keys[torch.where(speaks[:, None], member, groups)]
        q = (keys[asked] * size).repeat(scene.num_rows, 1, 1)
        return Contents(q, k, v, k[0], -v[0])

    outs = Outputs(attend, scene, x, map(asking, questions), "chorus")
    for question, out in zip(questions, outs, strict=True):
        difference = (out.double() - expected.means(*question)).abs().flatten(1).amax(1)
        off = torch.maximum(off, difference)
    return off <= tolerance(shape.dtype, numerics), outs.finite


def group_of_slots(scene: Scene, groups: int, drawing: int) -> Tensor:
    """(num_slots, Hkv) group of each slot."""
    slots = torch.arange(scene.case.layout.num_slots, device=scene.device)[:, None]
    heads = torch.arange(scene.case.shape.num_kv_heads, device=scene.device)
    return hash_tensor(scene.case.seed, _WORD, drawing, slots, heads) % groups


@lru_cache(maxsize=8)
def _keys(groups: int, head_dim: int, device: torch.device) -> Tensor:
    """(groups + 1, head_dim) float32: rows of the Hadamard matrix, tiled; left-over lanes are 0.

    What says nothing is in one group more, whose key is 0.
    """
    lane = np.arange(head_dim)
    common = np.arange(groups)[:, None] & (lane % groups)
    parity = (common ^ (common >> 1) ^ (common >> 2)) & 1
    keys = np.zeros((groups + 1, head_dim), dtype=np.float32)
    keys[:groups] = np.where(lane < head_dim // groups * groups, 1 - 2 * parity, 0)
    return torch.from_numpy(keys).to(device)


def _query_size(lanes: int, scale: float) -> float:
    """Power of two that gives the asked group a score of at least _GAP."""
    return 2.0 ** math.ceil(math.log2(_GAP / (lanes * scale)))


def _weight_of_others(score: float, softcap: float | None) -> float:
    """What a key that scores 0 weighs against one of the asked group."""
    return math.exp(-score if softcap is None else -softcap * math.tanh(score / softcap))


class _Expected:
    """What each group must answer to each row; `v` (num_slots, Hkv, Dv), 0 where nobody speaks.

    All keys but the asked group's count as well, `others` times as much: next to nothing but under a
    small softcap, or where a row sees no member at all and the mean is over everything it sees.
    """

    def __init__(self, scene: Scene, own: OwnReads, v: Tensor, others: float) -> None:
        self._want, self._own, self._others = wanted(scene), own, others
        heads = torch.arange(scene.case.shape.num_q_heads, device=scene.device)
        self._kv_head = heads // scene.case.shape.group_size
        self._slot = own.slot.clamp(min=0)  # past its last slot a request reads none
        # What each key says to each query head, and 1 to count it: (B, n, Hq, Dv + 1).
        voices = v[self._slot].float().index_select(2, self._kv_head)
        self._voices = torch.nn.functional.pad(voices, (0, 1), value=1.0)
        self._everything = self._total(self._voices)[..., :-1]

    def _total(self, said: Tensor) -> Tensor:
        """(T, ...): `said` (B, n, ...) summed over the slots that a row must read. Whole numbers, exact."""
        total = self._own.read @ said.flatten(2)
        of_rows = total[self._want.request, self._want.place].double()
        return of_rows.view(-1, *said.shape[2:])

    def means(self, member: Tensor, asked: Tensor) -> Tensor:
        """(T, Hq, Dv) float64, where slots belong to `member` (num_slots, Hkv) and `asked` is (Hq,)."""
        heard = member[self._slot].index_select(2, self._kv_head) == asked  # (B, n, Hq)
        among = self._total(heard[..., None] * self._voices)
        among, count = among[..., :-1], among[..., -1]
        total = count + self._others * (self._want.count[:, None] - count)
        alone = torch.where(total > 0, total, 1.0)  # padded rows see nothing
        return (among + self._others * (self._everything - among)) / alone[..., None]
