"""Probe 1, checksum: far prefix keys, more than anyone could tag, weighed all at once.

With q = 0 every key a row reads weighs the same, so output times the number of keys is the sum of
the values read. V is a random code of +-1 in which neighbouring keys, in the logical order of their
request, are opposite: whatever a kernel adds up in order stays small and is rounded by next to
nothing, at any length. One key more, fewer or twice moves every sum by 1; any other wrong set moves
some of 64 or more random sums, but for sets of whole pairs, which cancel: so keys are paired once
from an even and once from an odd key. (A missing page of 16 keys moves no sum at one offset, and
half of them by 2 at the other.)
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
from treeproof.properties.probes.launch import AttendCall, Contents, outputs, zeros
from treeproof.properties.scene import Scene
from treeproof.properties.wanted import wanted

_SUMS = 64
"""Independent sums a row, at least: a wrong set without pairs leaves all alone once in 2**64."""

_WORD = 211  # address word of the codes


def tolerance(dtype: str, numerics: Numerics) -> float:
    """How far from its whole number a right sum may be; a wrong one is off by 1 or more.

    Sums of pairs are 2 at most, and that is what is rounded: once in the output, once a declared
    merge. Weights are equal and round alike. 0.3 is for sums that a tag next to a pair leaves
    unbalanced and for accumulators; real kernels used 0.07 of it up to 131,072 keys.
    """
    return 0.3 + 2 * (UNIT_ROUNDOFF[dtype] + partial_rounding(dtype, numerics))


def off_by(attend: AttendCall, scene: Scene, x: VerifyInput, lit: Tensor) -> Tensor:
    """(T,) float64: largest distance of a row's sums from what it must read of the `lit` slots.

    `lit` (num_slots,) bool: prefix slots that carry their code; all other memory carries 0. Padded
    rows read 0.
    """
    shape = scene.case.shape
    group = torch.arange(shape.num_q_heads, device=scene.device) // shape.group_size
    keys = max(r.prefix_len + r.num_nodes for r in scene.case.requests)
    largest = 6 if shape.kv_dtype else 12  # codes of either kind hold 64 exactly
    amplitude = 2.0 ** min(largest, max(0, math.ceil(math.log2(keys))))
    q = torch.zeros(
        len(scene.rows), shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    k = zeros(scene, shape.head_dim) + 1
    count = wanted(scene).count
    worst = torch.zeros(len(scene.rows), dtype=torch.float64, device=scene.device)
    codes = [
        _code(scene, offset, drawing) * lit[:, None, None] for offset, drawing in _drawings(scene)
    ]

    def coded(code: Tensor) -> Contents:
        v = code.to(scene.dtype) * amplitude
        return Contents(q, k, v, k[0], 0 * v[0])

    outs = outputs(attend, scene, x, map(coded, codes), "checksum")
    for code, out in zip(codes, outs, strict=True):
        sums = out.double() / amplitude * count[:, None, None]
        off = (sums - _sums(scene, code)[:, group]).abs().flatten(1).amax(1)
        worst = torch.maximum(worst, off)
    return torch.where(scene.padding, 0.0, worst)


def _drawings(scene: Scene) -> list[tuple[int, int]]:
    """(offset of the pairs, drawing) of each launch."""
    shape = scene.case.shape
    drawings = -(-_SUMS // (shape.num_kv_heads * shape.v_head_dim))
    return [(offset, drawing) for offset in range(2) for drawing in range(drawings)]


@lru_cache(maxsize=8)
def _code(scene: Scene, offset: int, drawing: int) -> Tensor:
    """(num_slots, Hkv, Dv) int8: +-1 on prefix slots, 0 elsewhere."""
    shape = scene.case.shape
    width = shape.num_kv_heads * shape.v_head_dim
    # An aliased key is paired as in the request that owns it; sums are added up from the codes.
    slot, request, column = scene.on_device(scene.prefix).unbind(1)
    pair, second = (column + offset) // 2, (column + offset) % 2
    words = torch.arange(-(-width // 64), device=scene.device)
    bits = hash_tensor(
        scene.case.seed, _WORD, offset, drawing, request[:, None], pair[:, None], words
    )
    lane = torch.arange(width, device=scene.device)
    sign = 1 - 2 * ((bits[:, lane // 64] >> (lane % 64)) & 1).to(torch.int8)
    code = torch.zeros(scene.case.layout.num_slots, width, dtype=torch.int8, device=scene.device)
    code[slot] = sign * (1 - 2 * second[:, None]).to(torch.int8)
    return code.reshape(-1, shape.num_kv_heads, shape.v_head_dim)


def _sums(scene: Scene, code: Tensor) -> Tensor:
    """(T, Hkv, Dv) float64: sum of the codes that each row must read."""
    want = wanted(scene)
    # Differences of running sums over all prefixes: from where a row's window begins to the end.
    columns = scene.on_device(scene.ledger.prefix_slots)
    held = torch.where((columns >= 0)[:, None, None], code[columns.clamp(min=0)], 0)
    # Along the last axis: a GPU adds up along any other one far more slowly.
    total = held.flatten(1).T.contiguous().cumsum(1, dtype=torch.int32)
    total = torch.nn.functional.pad(total, (1, 0)).T
    lengths = [request.prefix_len for request in scene.case.requests]
    begin = scene.on_device(np.cumsum([0, *lengths]))
    first = begin[want.request] + want.first
    sums = total[begin[want.request + 1]] - total[first]
    return sums.double().view(-1, *code.shape[1:])
