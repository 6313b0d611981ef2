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
from dataclasses import dataclass
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
_ALONE, _STALE = -1, -2  # and of codes that belong to no pair, in place of a request


_CLEAR = 0.45
"""A limit beyond which a right sum and the nearest wrong one could not be told apart."""


@dataclass(frozen=True)
class Sums:
    """`off` (T,) float64: largest distance of a row's sums from what it must read; `limit` (T,): how
    far a right one may be. 0 on padding."""

    off: Tensor
    limit: Tensor

    @property
    def wrong(self) -> Tensor:
        """(T,) bool."""
        return self.off > self.limit

    @property
    def settled(self) -> Tensor:
        """() bool: all sums are right, and near enough to say so."""
        return ~(self.wrong | (self.limit > _CLEAR)).any()


def sum_up(
    attend: AttendCall, scene: Scene, x: VerifyInput, numerics: Numerics, lit: Tensor | None = None
) -> Sums:
    """Launch, and compare the sums of values of every row with those that it must read.

    `lit` (num_slots,) bool: prefix slots that carry their code, all other memory carrying 0. None:
    every slot of the cache does, those of the tree and those that nobody holds a random one each.

    A right sum is off by rounding, once in the output, once a declared merge, of what is rounded:
    pairs add up to 2 at most, and the tree's codes to what they do. Weights are equal and round
    alike. 0.3 is for sums that a tag next to a pair leaves unbalanced and for accumulators; real
    kernels used 0.07 of it up to 131,072 keys. One key more, fewer or twice is off by more than half.
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
    off = torch.zeros(len(scene.rows), dtype=torch.float64, device=scene.device)
    largest_tree = torch.zeros_like(off)
    codes = [_code(scene, *drawing, everywhere=lit is None) for drawing in _drawings(scene)]
    if lit is not None:
        codes = [code * lit[:, None, None] for code in codes]

    # What no row may read is loud where everything is lit, stale contents and padded rows too.
    stale = _signs(scene, (_STALE,), torch.zeros_like(scene.row_slot[:1]))[0] * (lit is None)

    def coded(code: Tensor) -> Contents:
        v = code.to(scene.dtype) * amplitude
        return Contents(q, k, v, k[0], stale.view_as(v[0]).to(v) * amplitude)

    outs = outputs(attend, scene, x, map(coded, codes), "checksum")
    for code, out in zip(codes, outs, strict=True):
        sums = out.double() / amplitude * count[:, None, None]
        tree = torch.zeros_like(off)[:, None, None] if lit is not None else _tree_sums(scene, code)
        right = _prefix_sums(scene, code) + tree
        off = torch.maximum(off, (sums - right[:, group]).abs().flatten(1).amax(1))
        largest_tree = torch.maximum(largest_tree, tree.abs().flatten(1).amax(1))
    rounding = UNIT_ROUNDOFF[shape.dtype] + partial_rounding(shape.dtype, numerics)
    limit = 0.3 + (2 + largest_tree) * rounding
    return Sums(*(torch.where(scene.padding, 0.0, each) for each in (off, limit)))


def _drawings(scene: Scene) -> list[tuple[int, int]]:
    """(offset of the pairs, drawing) of each launch."""
    shape = scene.case.shape
    drawings = -(-_SUMS // (shape.num_kv_heads * shape.v_head_dim))
    return [(offset, drawing) for offset in range(2) for drawing in range(drawings)]


@lru_cache(maxsize=8)
def _code(scene: Scene, offset: int, drawing: int, *, everywhere: bool) -> Tensor:
    """(num_slots, Hkv, Dv) int8: +-1 on prefix slots; elsewhere 0, or +-1 as well."""
    shape = scene.case.shape
    width = shape.num_kv_heads * shape.v_head_dim
    # An aliased key is paired as in the request that owns it; sums are added up from the codes.
    held, slots = scene.prefix, torch.arange(scene.case.layout.num_slots, device=scene.device)
    pair, second = (held.column + offset) // 2, (held.column + offset) % 2
    code = slots.new_zeros(len(slots), width, dtype=torch.int8)
    if everywhere:
        code = _signs(scene, (offset, drawing, _ALONE), slots)
    code[held.slot] = _signs(scene, (offset, drawing), held.request, pair) * (
        1 - 2 * second[:, None]
    ).to(torch.int8)
    return code.reshape(-1, shape.num_kv_heads, shape.v_head_dim)


def _signs(scene: Scene, first: tuple[int, ...], *address: Tensor) -> Tensor:
    """(n, Hkv * Dv) int8 of +-1, drawn from the words `first` and then `address` (n,) each."""
    width = scene.case.shape.num_kv_heads * scene.case.shape.v_head_dim
    words = torch.arange(-(-width // 64), device=scene.device)
    bits = hash_tensor(scene.case.seed, _WORD, *first, *(word[:, None] for word in address), words)
    # A copy: of no rows or one word, strides may be 0 and still count as contiguous.
    plain = bits.clone(memory_format=torch.contiguous_format)
    octets = plain.view(torch.uint8)[:, :, None]
    bit = (octets >> torch.arange(8, dtype=torch.uint8, device=scene.device)) & 1
    return 1 - 2 * bit.flatten(1)[:, :width].to(torch.int8)


def _prefix_sums(scene: Scene, code: Tensor) -> Tensor:
    """(T, Hkv, Dv) float64: sum of the codes of the prefix that each row must read."""
    want, there = wanted(scene), scene.prefix_columns
    # Differences of running sums over all prefixes: from where a row's window begins to the end.
    held = torch.where((there.slot >= 0)[:, None, None], code[there.slot.clamp(min=0)], 0)
    # Along the last axis: a GPU adds up along any other one far more slowly.
    total = held.flatten(1).T.contiguous().cumsum(1, dtype=torch.int32)
    total = torch.nn.functional.pad(total, (1, 0)).T
    begin = torch.nn.functional.pad(scene.prefix_lens.cumsum(0), (1, 0))
    first = begin[want.request] + want.first
    sums = total[begin[want.request + 1]] - total[first]
    return sums.double().view(-1, *code.shape[1:])


def _tree_sums(scene: Scene, code: Tensor) -> Tensor:
    """(T, Hkv, Dv) float64: sum of the codes of the tree rows that each row must read."""
    want = wanted(scene)
    requests, most = len(scene.case.requests), want.tree.shape[1]
    start = scene.on_device(np.array(scene.case.qo_indptr[:-1]))
    row = torch.arange(len(want.request), device=scene.device) - start[want.request]
    codes = torch.zeros(requests, most, code[0].numel(), device=scene.device)
    codes[want.request, row] = code[scene.row_slot.clamp(min=0)].flatten(1).float()
    read = torch.zeros(requests, most, most, device=scene.device)
    read[want.request, row] = want.tree.float()
    sums = read @ codes  # small whole numbers
    return sums[want.request, row].double().view(-1, *code.shape[1:])
