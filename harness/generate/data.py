"""The numbers of a case: queries, keys and values of logical tokens, equal on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeproof.contract.counter import GOLDEN_GAMMA, MIX_1, MIX_2, address_hash

if TYPE_CHECKING:
    from torch import Tensor

    from treeproof.contract.case import VerifyCase

# First word of every address, so that the five draws are unrelated.
_Q, _K_PREFIX, _V_PREFIX, _K_TREE, _V_TREE = range(1, 6)

# Four uniform 16-bit pieces: mean 4 * (2**16 - 1) / 2, variance 4 * (2**32 - 1) / 12.
_PIECES_MEAN = 2 * (2**16 - 1)
_PIECES_SCALE = math.sqrt(3 / (2**32 - 1))

_BLOCK = 1 << 15
"""Numbers hashed at a time: 256 KiB of int64 stay in cache, and long prefixes need no more."""


@dataclass(frozen=True)
class LogicalData:
    """What each logical token holds, before rotary embedding; one CPU tensor a request.

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
    device = next((word.device for word in rest if not isinstance(word, int)), None)
    state = torch.tensor(_signed(start), dtype=torch.int64, device=device)
    for word in rest:
        state = _mix_(state ^ (_signed(word) if isinstance(word, int) else word))
    return state


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
    total = bits & 0xFFFF
    for shift in (16, 32, 48):
        total += (bits >> shift).bitwise_and_(0xFFFF)
    return (total - _PIECES_MEAN).to(torch.float64) * _PIECES_SCALE


def logical_data(case: VerifyCase) -> LogicalData:
    """Queries, keys and values of every logical token of a case.

    Queries are multiplied by `score_spread` before they are rounded to the dtype of the case.
    Prefix keys and values belong to (request, position), or to (token, position) where the request
    has `prefix_tokens`; the first `layout.shared_prefix` positions are request 0's in every request.
    """
    shape = case.shape
    kv, d, dv = shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    requests = range(len(case.requests))
    return LogicalData(
        q=tuple(_tree_rows(case, _Q, b, shape.num_q_heads, d, case.score_spread) for b in requests),
        k_prefix=_prefixes(case, _K_PREFIX, kv, d),
        v_prefix=_prefixes(case, _V_PREFIX, kv, dv),
        k_tree=tuple(_tree_rows(case, _K_TREE, b, kv, d) for b in requests),
        v_tree=tuple(_tree_rows(case, _V_TREE, b, kv, dv) for b in requests),
    )


def _tree_rows(
    case: VerifyCase, what: int, request: int, heads: int, lanes: int, factor: float = 1.0
) -> Tensor:
    import torch

    nodes = torch.arange(len(case.requests[request].tree))
    words = ((what, request, nodes[part]) for part in _blocks(len(nodes), heads * lanes))
    return _rows(case, words, len(nodes), heads, lanes, factor)


def _prefixes(case: VerifyCase, what: int, heads: int, lanes: int) -> tuple[Tensor, ...]:
    import torch

    found: list[Tensor] = []
    for b, request in enumerate(case.requests):
        length, shared = request.prefix_len, case.layout.shared_prefix if b else 0
        first, count = torch.arange(shared, length), length - shared
        owner: int | Tensor = b
        if request.prefix_tokens:
            # Negative, so that no token stands for a request.
            owner = -1 - torch.tensor(request.prefix_tokens[shared:])
        words = (
            (what, owner if isinstance(owner, int) else owner[part], first[part])
            for part in _blocks(count, heads * lanes)
        )
        own = _rows(case, words, count, heads, lanes, 1.0)
        found.append(torch.cat([found[0][:shared], own]) if shared else own)
    return tuple(found)


def _blocks(count: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // width)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _rows(
    case: VerifyCase,
    words: Iterator[tuple[int | Tensor, ...]],
    count: int,
    heads: int,
    lanes: int,
    factor: float,
) -> Tensor:
    """(count, heads, lanes) in the case's dtype; each item of `words` addresses a run of rows."""
    import torch

    head, lane = torch.arange(heads)[:, None], torch.arange(lanes)
    out = torch.empty(count, heads, lanes, dtype=getattr(torch, case.shape.dtype))
    done = 0
    for address in words:
        columns = [word[:, None, None] if not isinstance(word, int) else word for word in address]
        block = normal(case.seed, *columns, head, lane)
        out[done : done + len(block)] = block * factor if factor != 1.0 else block
        done += len(block)
    return out
