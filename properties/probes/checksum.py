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
from treeproof.contract.counter import address_hash, hash_words
from treeproof.contract.inputs import VerifyInput
from treeproof.generate.data import hash_tensor
from treeproof.properties.bound import partial_rounding
from treeproof.properties.contract import Finite
from treeproof.properties.probes.launch import AttendCall, Contents, Outputs, zeros
from treeproof.properties.scene import Scene
from treeproof.properties.wanted import wanted

_SUMS = 64
"""Independent sums a row, at least: a wrong set without pairs leaves all alone once in 2**64."""

_WORD = 211  # address word of the codes
_ALONE, _STALE = -1, -2  # and of codes that belong to no pair, in place of a request


_CLEAR = 0.45
"""A limit beyond which a right sum and the nearest wrong one could not be told apart. Along a deep path
some lanes add up to that much; the others, of a kernel that rounds partial results too, are enough."""


@dataclass(frozen=True)
class Sums:
    """`off` (T,) float64: largest distance of a row's sums from what it must read; `limit` (T,): how
    far the least certain of them may be. `wrong` (T,) bool: one of them is farther than itself may be.
    `clear` (T,): how many tell one key from none, of pairs from either offset. No row of padding is
    wrong. `finite` is still to be required of the launches.
    """

    off: Tensor
    limit: Tensor
    wrong: Tensor
    clear: Tensor
    finite: Finite

    @property
    def settled(self) -> Tensor:
        """() bool: all sums are right, and so many are near enough to say so that no wrong set is left."""
        return ~(self.wrong | (self.clear < _SUMS)).any()


def sum_up(
    attend: AttendCall,
    scene: Scene,
    x: VerifyInput,
    numerics: Numerics,
    lit: Tensor | None = None,
    *,
    turn: int = 0,
) -> Sums:
    """Launch, and compare the sums of values of every row with those that it must read.

    `lit` (num_slots,) bool: prefix slots that carry their code, all other memory carrying 0. None:
    every slot of the cache does, those of the tree and those that nobody holds a random one each.
    Another `turn` draws other codes.

    A right sum is off by rounding, once in the output, once a declared merge, of what is rounded:
    pairs add up to 2 at most, and the tree's codes to what they do, each lane's to its own. Weights are
    equal and round alike. 0.3 is for sums that a tag next to a pair leaves unbalanced and for accumulators; real
    kernels used 0.07 of it up to 131,072 keys. One key more, fewer or twice is off by more than half.
    """
    shape, want = scene.case.shape, wanted(scene)
    keys = max(r.prefix_len + r.num_nodes for r in scene.case.requests)
    largest = 6 if shape.kv_dtype else 12  # codes of either kind hold 64 exactly
    amplitude = 2.0 ** min(largest, max(0, math.ceil(math.log2(keys))))
    q = torch.zeros(
        scene.num_rows, shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    k = zeros(scene, shape.head_dim).fill_(1)
    keys_read = (want.count / amplitude)[:, None, None]  # of a power of two, exact
    rounding = UNIT_ROUNDOFF[shape.dtype] + partial_rounding(shape.dtype, numerics)
    off = torch.zeros(scene.num_rows, dtype=torch.float64, device=scene.device)
    limit, wrong = torch.zeros_like(off), scene.padding.new_zeros(scene.num_rows)
    clear = torch.zeros(2, scene.num_rows, dtype=torch.int64, device=scene.device)  # by offset
    drawings = _drawings(scene, turn)
    codes = [_code(scene, *drawing, everywhere=lit is None) for drawing in drawings]
    if lit is not None:
        codes = [code * lit[:, None, None] for code in codes]

    # What no row may read is loud where everything is lit, stale contents and padded rows too.
    stale = _stale(scene).to(scene.dtype) * (amplitude if lit is None else 0.0)

    def coded(code: Tensor) -> Contents:
        return Contents(q, k, code.to(scene.dtype).mul_(amplitude), k[0], stale)

    outs = Outputs(attend, scene, x, map(coded, codes), "checksum")
    for (offset, _), code, out in zip(drawings, codes, outs, strict=True):
        sums = out.double() * keys_read
        right = _prefix_sums(scene, code)
        rounded = torch.full_like(right, 2.0)
        if lit is None:
            tree = _tree_sums(scene, code)
            right = right + tree
            rounded += tree.abs()
        by_group = sums.view(-1, shape.num_kv_heads, shape.group_size, shape.v_head_dim)
        away = (by_group - right[:, :, None]).abs().amax(2).flatten(1)
        allowed = 0.3 + rounded.flatten(1) * rounding
        off = torch.maximum(off, away.amax(1))
        limit = torch.maximum(limit, allowed.amax(1))
        wrong |= (away > allowed).any(1)
        clear[offset] += (allowed <= _CLEAR).sum(1)
    off, limit = (torch.where(scene.padding, 0.0, each) for each in (off, limit))
    clear = torch.where(scene.padding, _SUMS, clear.amin(0))
    return Sums(off, limit, wrong & ~scene.padding, clear, outs.finite)


def _drawings(scene: Scene, turn: int) -> list[tuple[int, int]]:
    """(offset of the pairs, drawing) of each launch."""
    shape = scene.case.shape
    drawings = -(-_SUMS // (shape.num_kv_heads * shape.v_head_dim))
    first = turn * drawings
    return [(offset, first + i) for offset in range(2) for i in range(drawings)]


@lru_cache(maxsize=8)
def _code(scene: Scene, offset: int, drawing: int, *, everywhere: bool) -> Tensor:
    """(num_slots, Hkv, Dv) int8: +-1 on prefix slots; elsewhere 0, or +-1 as well."""
    shape = scene.case.shape
    # An aliased key is paired as in the request that owns it; sums are added up from the codes.
    request, column = _held_prefix(scene)
    held, place = request >= 0, column + offset
    slots = torch.arange(len(request), device=scene.device)
    pair = torch.where(held, place >> 1, slots)
    code = _signs(scene, (offset, drawing), request, pair, flipped=held & (place & 1).bool())
    if not everywhere:
        code *= held[:, None]
    return code.reshape(-1, shape.num_kv_heads, shape.v_head_dim)


@lru_cache(maxsize=2)
def _held_prefix(scene: Scene) -> Tensor:
    """(2, num_slots) int64: the request and the column of each prefix slot, _ALONE of all others."""
    table = torch.full(
        (2, scene.case.layout.num_slots), _ALONE, dtype=torch.int64, device=scene.device
    )
    table[:, scene.prefix.slot] = torch.stack((scene.prefix.request, scene.prefix.column))
    return table


def _signs(
    scene: Scene, first: tuple[int, ...], *address: Tensor, flipped: Tensor | None = None
) -> Tensor:
    """(n, Hkv * Dv) int8 of +-1, drawn from the words `first` and then `address` (n,) each.

    `flipped` (n,) bool: rows that get the opposite of what is drawn.
    """
    width = scene.case.shape.num_kv_heads * scene.case.shape.v_head_dim
    words = torch.arange(-(-width // 64), device=scene.device)
    bits = hash_tensor(scene.case.seed, _WORD, *first, *(word[:, None] for word in address), words)
    if flipped is not None:
        bits = bits ^ -flipped.long()[:, None]
    # A copy: of no rows or one word, strides may be 0 and still count as contiguous.
    plain = bits.clone(memory_format=torch.contiguous_format)
    octets = plain.view(torch.uint8)[:, :, None]
    bit = (octets >> torch.arange(8, dtype=torch.uint8, device=scene.device)).bitwise_and_(1)
    return bit.view(torch.int8).mul_(-2).add_(1).flatten(1)[:, :width]


def _stale(scene: Scene) -> Tensor:
    """(Hkv, Dv) float32 of +-1, drawn as `_signs` of a row by itself are, on the host."""
    shape = scene.case.shape
    width = shape.num_kv_heads * shape.v_head_dim
    state = address_hash(scene.case.seed, _WORD, _STALE, 0)
    octets = hash_words(state, np.arange(-(-width // 64), dtype=np.uint64)).view(np.uint8)
    signs = 1.0 - 2.0 * np.unpackbits(octets, bitorder="little")[:width]
    return scene.on_device(signs.astype(np.float32).reshape(shape.num_kv_heads, shape.v_head_dim))


_RUN = 128
"""Keys that are added up at once."""


def _prefix_sums(scene: Scene, code: Tensor) -> Tensor:
    """(T, Hkv, Dv) float64: sum of the codes of the prefix that each row must read, padding aside."""
    want, width = wanted(scene), code[0].numel()
    keys = _PrefixKeys.of(scene)
    runs = code.index_select(0, keys.slot).view(-1, _RUN, width)
    if keys.absent is not None:
        runs = runs.masked_fill(keys.absent, 0)
    # Along the last axis: a GPU adds up along any other one far more slowly.
    before = runs.sum(1, dtype=torch.int32).T.contiguous().cumsum(1, dtype=torch.int32)
    before = torch.nn.functional.pad(before, (1, 0)).T

    def up_to(at: Tensor) -> Tensor:
        """(n, Hkv * Dv): sums of all that stand before `at` (n,)."""
        run, inside = at // _RUN, (keys.place < (at % _RUN)[:, None])[..., None]
        part: Tensor = (runs.index_select(0, run) * inside).sum(1, dtype=torch.int32)
        return before.index_select(0, run) + part

    ends = up_to(keys.begin)
    if scene.case.shape.window is None:
        sums = (ends[1:] - ends[:-1]).index_select(0, want.request)
    else:
        last = ends.index_select(0, want.request + 1)
        sums = last - up_to(keys.begin[want.request] + want.first)
    return sums.double().view(-1, *code.shape[1:])


@dataclass(frozen=True)
class _PrefixKeys:
    """The prefix columns of all requests in runs of _RUN, the last of which is filled up.

    `slot` (runs * _RUN,). `absent` (runs, _RUN, 1) bool: evicted; None where nothing is. `begin`
    (B + 1,): where the columns of a request begin, and the end. `place` (_RUN,).
    """

    slot: Tensor
    absent: Tensor | None
    begin: Tensor
    place: Tensor

    @classmethod
    @lru_cache(maxsize=2)
    def of(cls, scene: Scene) -> _PrefixKeys:
        slot = scene.prefix_columns.slot
        slot = torch.nn.functional.pad(slot, (0, _RUN - len(slot) % _RUN))
        absent = None if scene.ledger.apart else (slot < 0).view(-1, _RUN, 1)
        begin = torch.nn.functional.pad(scene.prefix_lens.cumsum(0), (1, 0))
        place = torch.arange(_RUN, device=scene.device)
        return cls(slot.clamp(min=0), absent, begin, place)


def _tree_sums(scene: Scene, code: Tensor) -> Tensor:
    """(T, Hkv, Dv) float64: sum of the codes of the tree rows that each row must read."""
    want = wanted(scene)
    codes = want.padded(code[scene.row_slot.clamp(min=0)].flatten(1).float())
    sums = want.by_request @ codes  # small whole numbers
    return sums[want.request, want.place].double().view(-1, *code.shape[1:])
