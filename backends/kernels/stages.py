"""Launching the kernels of build, accept, sample and commit: what all Triton backends have in common."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.kernels.compaction import compact
from treeproof.backends.kernels.greedy import accept_greedily
from treeproof.backends.kernels.launching import at_once
from treeproof.backends.kernels.sampled import sample_tree
from treeproof.backends.kernels.tree_build import build_rows, find_parents
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Accepted, Candidates, Committed, VerifyInput
from treeproof.contract.sampling import GREEDY, TARGET_ONLY, Sampling

_BLOCK = 128
"""Cells that a program writes at once."""
_TOKENS = 1024
"""Of a vocabulary, that a program draws from at once."""
_LEAST = 1e-9
"""A threshold that a sum is divided by, at least."""


def build(c: Candidates) -> VerifyInput:
    """Rows, positions, slots, links and the mask of every request, in two launches."""
    requests, width = len(c.num_rows), c.selected_index.shape[1] + 1
    qo_indptr = pad(c.num_rows.cumsum(0), (1, 0))
    mask_indptr = pad(mask_cells(c.mask_mode, c.num_rows, c.seq_lens).cumsum(0), (1, 0))
    total = int(qo_indptr[-1])
    tokens, positions, homes = (c.seq_lens.new_empty(total) for _ in range(3))
    index, parents, next_token, next_sibling = (
        c.seq_lens.new_empty(requests, width) for _ in range(4)
    )
    units, widest = requests * width, triton.next_power_of_2(width)
    together = at_once(units, max(widest, _BLOCK))
    grid = (triton.cdiv(units, together),)
    find_parents[grid](
        c.selected_index, c.parent_list, c.draft_token, c.bonus_tokens, c.num_nodes, qo_indptr,
        c.seq_lens, c.request_slots, c.req_to_token, tokens, homes, index, parents,
        units, width, c.parent_list.shape[1], c.topk, c.kv.pad_slot, c.req_to_token.stride(0),
        UNITS=together, BLOCK=_BLOCK,
    )  # fmt: skip
    build_rows[grid](
        parents, c.num_nodes, qo_indptr, c.seq_lens, as_integers(c.mask_buffer), mask_indptr,
        positions, next_token, next_sibling, units, width, c.spec_steps,
        PACKED=c.mask_mode is MaskMode.QLEN_ONLY_BITPACKING,
        PREFIXED=c.mask_mode is MaskMode.FULL_MASK,
        FILL_PREFIX=c.mask_mode is MaskMode.FULL_MASK and c.fill_prefix_mask,
        WIDTH=widest, UNITS=together, BLOCK=_BLOCK,
    )  # fmt: skip
    return VerifyInput(
        draft_token=tokens,
        positions=positions,
        seq_lens=c.seq_lens,
        qo_indptr=qo_indptr,
        out_cache_loc=homes,
        request_slots=c.request_slots,
        req_to_token=c.req_to_token,
        topk=c.topk,
        spec_steps=c.spec_steps,
        shape=c.shape,
        kv=c.kv,
        custom_mask=c.mask_buffer,
        mask_indptr=mask_indptr,
        mask_mode=c.mask_mode,
        retrieve_index=index,
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling,
        retrieve_parent_token=parents,
    )


def accept(x: VerifyInput, target_predict: Tensor) -> Accepted:
    """The greedy walk of every request, in one launch."""
    names = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
    index, down, right = built(x, *names).values()
    requests, width = index.shape
    accept_index = index.new_full((requests, x.spec_steps + 1), -1)
    tokens, accept_len = torch.full_like(accept_index, -1), index.new_empty(requests)
    accept_greedily[requests,](
        x.draft_token, target_predict, index, down, right, accept_index, accept_len, tokens,
        width, x.spec_steps,
    )  # fmt: skip
    return Accepted(accept_index=accept_index, accept_len=accept_len, tokens=tokens)


def sample(x: VerifyInput, given: Sampling) -> Accepted:
    """Sampled acceptance of every request, in one launch.

    Raises ValueError where the rule is another than target-only or greedy.
    """
    names = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
    index, down, right = built(x, *names).values()
    probs, coins, final_coins = given.target_probs, given.coins, given.final_coins
    if given.rule == GREEDY:
        # The likeliest token, of equals the first, has all there is.
        probs = torch.zeros_like(probs).scatter_(1, probs.argmax(1, keepdim=True), 1.0)
        coins, final_coins = torch.zeros_like(coins), torch.zeros_like(final_coins)
    elif given.rule != TARGET_ONLY:
        raise ValueError(f"rule is {given.rule}: known are {TARGET_ONLY} and {GREEDY}")
    requests, width = index.shape
    accept_index = index.new_full((requests, x.spec_steps + 1), -1)
    tokens, accept_len = torch.full_like(accept_index, -1), index.new_empty(requests)
    vocabulary = probs.shape[1]
    together = min(_TOKENS, triton.next_power_of_2(vocabulary))
    sample_tree[requests,](
        x.draft_token, probs, coins, final_coins, index, down, right, accept_index, accept_len,
        tokens, width, x.spec_steps, vocabulary, probs.stride(0),
        given.threshold_single, max(given.threshold_acc, _LEAST), BLOCK=together,
    )  # fmt: skip
    return Accepted(accept_index=accept_index, accept_len=accept_len, tokens=tokens)


def commit(x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor) -> Committed:
    """K and V of accepted rows to the columns that follow the prefix, one launch each."""
    requests, width = accepted.accept_index.shape
    for cache in (k_cache, v_cache):
        moved = as_integers(cache)
        steps, lanes = map(triton.next_power_of_2, (width, cache.shape[2]))
        together = at_once(cache.shape[1], steps * lanes)
        compact[requests, triton.cdiv(cache.shape[1], together)](
            moved, accepted.accept_index, x.out_cache_loc, x.seq_lens, x.request_slots,
            x.req_to_token, width, cache.shape[1], moved.stride(0), moved.stride(1),
            x.req_to_token.stride(0),
            LANES=cache.shape[2], WIDTH=steps, UNITS=together, BLOCK=lanes,
        )  # fmt: skip
    last = accepted.accept_len[:, None] - 1
    return Committed(
        seq_lens=x.seq_lens + accepted.accept_len, next_root=accepted.tokens.gather(1, last)[:, 0]
    )


def built(x: VerifyInput, *names: str) -> dict[str, Any]:
    """These fields. Raises ValueError where one was not built."""
    fields = {name: getattr(x, name) for name in names}
    missing = [name for name, field in fields.items() if field is None]
    if missing:
        raise ValueError(f"needed, and not built: {', '.join(missing)}")
    return fields


def owners(indptr: Tensor, count: int) -> Tensor:
    """(count,) which list each entry of a ragged list belongs to; `count` is `indptr[-1]`."""
    entry = torch.arange(count, device=indptr.device)
    return torch.searchsorted(indptr, entry, right=True) - 1


def as_integers(t: Tensor) -> Tensor:
    """The same bits as signed integers, for kernels that only move or test them."""
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.view(by_size[t.element_size()])


def mask_cells(mode: MaskMode | None, num_rows: Tensor, seq_lens: Tensor) -> Tensor:
    """(B,) cells, or items, of each request's mask."""
    if mode is MaskMode.FULL_MASK:
        return num_rows * (seq_lens + num_rows)
    return num_rows * num_rows if mode is MaskMode.QLEN_ONLY else num_rows
