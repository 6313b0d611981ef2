"""KV commit: the accepted rows' K and V move to the front of the request's verify columns."""

from __future__ import annotations

from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Accepted, Committed, VerifyInput


def commit(x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor) -> Committed:
    """Compact both caches in place; the boundary advances by the rows accepted.

    `k_cache` (num_slots, Hkv, D), `v_cache` (num_slots, Hkv, Dv). Column P + j of a request then
    holds the K and V of its j-th accepted row. The bonus, the last emitted token, is the next root;
    it has no KV yet, so the boundary does not count it.
    """
    note("commit")
    sources = source_slots(x.out_cache_loc, accepted.accept_index)
    targets = target_slots(x.out_cache_loc, x.qo_indptr, accepted.accept_len)
    for cache in (k_cache, v_cache):
        # All loads come before all stores: sources and targets overlap.
        cache[targets] = cache[sources]
    return Committed(
        seq_lens=x.seq_lens + accepted.accept_len,
        next_root=bonus_tokens(accepted.tokens, accepted.accept_len),
    )


def source_slots(out_cache_loc: Tensor, accept_index: Tensor) -> Tensor:
    """(sum of accept_len,) slots of the accepted rows, request after request.

    `out_cache_loc` (T,), `accept_index` (B, S+1) batch-global rows, -1 padded.
    """
    return out_cache_loc[accept_index[accept_index >= 0]]


def target_slots(out_cache_loc: Tensor, qo_indptr: Tensor, accept_len: Tensor) -> Tensor:
    """(sum of accept_len,) slots of the first `accept_len[b]` rows of each request."""
    firsts, lengths = qo_indptr.tolist(), accept_len.tolist()
    rows = [
        first + j for first, length in zip(firsts, lengths, strict=False) for j in range(length)
    ]
    return out_cache_loc[rows]


def bonus_tokens(tokens: Tensor, accept_len: Tensor) -> Tensor:
    """(B,) last of the `accept_len[b]` tokens that each request emits; `tokens` (B, S+1)."""
    return tokens.gather(1, (accept_len - 1).unsqueeze(1)).squeeze(1)
