"""The numbers of a case: queries, keys and values of logical tokens, equal on every machine."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from treeproof.contract.counter import GOLDEN_GAMMA, MIX_1, MIX_2, address_hash
from treeproof.generate.sending import sent

if TYPE_CHECKING:
    from torch import Tensor

    from treeproof.contract.case import VerifyCase

# First word of every address, so that the five draws are unrelated.
_Q, _K_PREFIX, _V_PREFIX, _K_TREE, _V_TREE = range(1, 6)

# Four uniform 16-bit pieces: mean 4 * (2**16 - 1) / 2, variance 4 * (2**32 - 1) / 12.
_PIECES_MEAN = 2 * (2**16 - 1)
_PIECES_SCALE = math.sqrt(3 / (2**32 - 1))

_EVEN_PIECES = 0x0000FFFF0000FFFF

_BLOCK = 1 << 15
"""Numbers hashed at a time: 256 KiB of int64 stay in cache, and long prefixes need no more."""


@dataclass(frozen=True)
class LogicalData:
    """What each logical token holds, before rotary embedding; one tensor a request.

    All in the dtype of the case. `q[b]` (N_b, Hq, D), `k_tree[b]` (N_b, Hkv, D) and `v_tree[b]`
    (N_b, Hkv, Dv) are in node order, not in row order; `k_prefix[b]` (P_b, Hkv, D) and
    `v_prefix[b]` (P_b, Hkv, Dv) in logical order.
    """

    q: tuple[Tensor, ...]
    k_prefix: tuple[Tensor, ...]
    v_prefix: tuple[Tensor, ...]
    k_tree: tuple[Tensor, ...]
    v_tree: tuple[Tensor, ...]


def hash_tensor(seed: int, *address: int | Tensor) -> Tensor:
    """`counter.address_hash` on int64 tensors, bit for bit.

    Words of the address are ints or int64 tensors that broadcast together; all tensors on one
    device. Returns int64 of the broadcast shape; as unsigned 64 bits it is `address_hash`.
    """
    import torch

    # Plain words at the front are hashed once, in Python.
    plain = next((i for i, word in enumerate(address) if not isinstance(word, int)), len(address))
    start = address_hash(seed, *(word for word in address[:plain] if isinstance(word, int)))
    rest = address[plain:]
    words = [word for word in rest if not isinstance(word, int)]
    if len(words) == len(rest) and _on_cuda(*words) and max(word.dim() for word in words) <= 2:
        from treeproof.generate.data_kernel import MOST_WORDS, hashed

        if len(words) <= MOST_WORDS:
            return hashed(_signed(start), words)
    device = words[0].device if words else None
    state = torch.tensor(_signed(start), dtype=torch.int64, device=device)
    for word in rest:
        state = _mix_(state ^ (_signed(word) if isinstance(word, int) else word))
    return state


def _on_cuda(*words: Tensor) -> bool:
    """Whether a kernel can be had for these: they are there, on a GPU, and so is Triton."""
    return bool(words) and words[0].is_cuda and importlib.util.find_spec("triton") is not None


def _mix_(state: Tensor) -> Tensor:
    """Add the golden gamma and apply SplitMix64's finaliser, in place; int64 products wrap."""
    state += _signed(GOLDEN_GAMMA)
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        state ^= _logical_shift(state, shift)
        state *= _signed(factor)
    state ^= _logical_shift(state, 31)
    return state


def _logical_shift(state: Tensor, by: int) -> Tensor:
    # int64 shifts drag the sign along; the mask takes it off again.
    return (state >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    """The int64 that has the low 64 bits of `word`."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def normal(seed: int, *address: int | Tensor) -> Tensor:
    """Nearly normal numbers, mean 0 and variance 1, within 3.47; float64, one a hashed address.

    The sum of four uniform 16-bit pieces of the hash: whole numbers up to the last multiplication,
    so the same everywhere (a logarithm or cosine would not be).
    """
    import torch

    bits = hash_tensor(seed, *address)
    # Two sums of two pieces, in the halves of one word; then the sum of the halves.
    pairs = (bits & _EVEN_PIECES).add_(bits.bitwise_right_shift_(16).bitwise_and_(_EVEN_PIECES))
    total = (pairs >> 32).add_(pairs.bitwise_and_(0xFFFFFFFF))
    return (total - _PIECES_MEAN).to(torch.float64) * _PIECES_SCALE


def logical_data(case: VerifyCase, device: str = "cpu") -> LogicalData:
    """Queries, keys and values of every logical token of a case, made on `device`.

    Queries are multiplied by `score_spread` before they are rounded to the dtype of the case.
    Prefix keys and values belong to (request, position), or to (token, position) where the request
    has `prefix_tokens`; the first `layout.shared_prefix` positions are request 0's in every request.
    """
    shape = case.shape
    kv, d, dv = shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    nodes, prefix = _nodes(case, device), _prefix_columns(case, device)

    def tree(what: int, heads: int, lanes: int, factor: float = 1.0) -> tuple[Tensor, ...]:
        rows = _rows(case, what, nodes, heads, lanes, factor)
        return _split(rows, [request.num_nodes for request in case.requests])

    return LogicalData(
        q=tree(_Q, shape.num_q_heads, d, case.score_spread),
        k_prefix=_prefixes(case, _rows(case, _K_PREFIX, prefix, kv, d)),
        v_prefix=_prefixes(case, _rows(case, _V_PREFIX, prefix, kv, dv)),
        k_tree=tree(_K_TREE, kv, d),
        v_tree=tree(_V_TREE, kv, dv),
    )


_Tokens = tuple["Tensor", "Tensor"]
"""(n,) owner and (n,) index of logical tokens: a request and one of its nodes or positions."""


def _nodes(case: VerifyCase, device: str) -> _Tokens:
    """All nodes of all requests."""
    counts = [request.num_nodes for request in case.requests]
    return _flat(range(len(counts)), [0] * len(counts), counts, device)


def _prefix_columns(case: VerifyCase, device: str) -> _Tokens:
    """The prefix positions of all requests, those aliased to request 0 left out."""

    shared = [0, *[case.layout.shared_prefix] * (len(case.requests) - 1)]
    lengths = [request.prefix_len for request in case.requests]
    owner, index = _flat(range(len(lengths)), shared, lengths, device)
    begin = 0
    for request, first in zip(case.requests, shared, strict=True):
        if request.prefix_tokens:
            # Negative, so that no token stands for a request.
            tokens = sent(request.prefix_tokens[first:], device)
            owner[begin : begin + len(tokens)] = -1 - tokens
        begin += request.prefix_len - first
    return owner, index


def _flat(owners: Sequence[int], begin: Sequence[int], end: Sequence[int], device: str) -> _Tokens:
    """`owners[i]` with each of range(begin[i], end[i]), one after the other."""
    import torch

    counts = [high - low for low, high in zip(begin, end, strict=True)]
    total, before = sum(counts), accumulate(counts, initial=0)
    shifts = [low - first for low, first in zip(begin, before, strict=False)]
    told = sent([counts, [*owners], shifts], device)
    owner, shift = told[1:].repeat_interleave(told[0], dim=1, output_size=total)
    return owner.contiguous(), torch.arange(total, device=device) + shift


def _prefixes(case: VerifyCase, rows: Tensor) -> tuple[Tensor, ...]:
    """One tensor a request, request 0's shared positions in front of those of every other."""
    import torch

    shared = case.layout.shared_prefix
    first, *rest = _split(
        rows, [r.prefix_len - (shared if b else 0) for b, r in enumerate(case.requests)]
    )
    return first, *(torch.cat([first[:shared], own]) if shared else own for own in rest)


def _split(rows: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    return tuple(rows.split(list(sizes)))  # type: ignore[no-untyped-call]


def _rows(
    case: VerifyCase, what: int, tokens: _Tokens, heads: int, lanes: int, factor: float = 1.0
) -> Tensor:
    """(n, heads, lanes) in the case's dtype: the numbers of `n` tokens."""
    import torch

    owner, index = tokens
    device, count = owner.device, len(owner)
    out = torch.empty(count, heads, lanes, dtype=getattr(torch, case.shape.dtype), device=device)
    if count and _on_cuda(owner):
        from treeproof.generate.data_kernel import fill

        fill(out, owner, index, _signed(address_hash(case.seed, what)), _PIECES_SCALE, factor)
        return out
    head, lane = (torch.arange(n, device=device) for n in (heads, lanes))
    step = max(1, _BLOCK // (heads * lanes))
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        token = (words[part, None, None] for words in tokens)
        block = normal(case.seed, what, *token, head[:, None], lane)
        out[part] = block * factor if factor != 1.0 else block
    return out
