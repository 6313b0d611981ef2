"""Launching the kernels of build, accept and commit: what all Triton backends have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.kernels.compaction import compact
from treeproof.backends.kernels.greedy import accept_greedily
from treeproof.backends.kernels.tree_build import build_rows, link_children, list_rows
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Accepted, Candidates, Committed, VerifyInput

_BLOCK = 128
"""Cells that a program writes at once."""


def build(c: Candidates) -> VerifyInput:
    """Rows, positions, slots, links and the mask of every request, in two launches."""
    requests, width = len(c.num_rows), c.selected_index.shape[1] + 1
    qo_indptr = pad(c.num_rows.cumsum(0), (1, 0))
    mask_indptr = pad(_cells(c).cumsum(0), (1, 0))
    total = int(qo_indptr[-1])
    tokens, positions, homes = (c.seq_lens.new_empty(total) for _ in range(3))
    index, parents, next_token, next_sibling = (
        c.seq_lens.new_empty(requests, width) for _ in range(4)
    )
    widest = triton.next_power_of_2(width)
    build_rows[width, requests](
        c.selected_index, c.parent_list, c.draft_token, c.bonus_tokens, c.num_nodes, qo_indptr,
        c.seq_lens, c.request_slots, c.req_to_token, as_integers(c.mask_buffer), mask_indptr,
        tokens, positions, homes, index, parents,
        width, c.parent_list.shape[1], c.topk, c.spec_steps, c.kv.pad_slot, c.req_to_token.stride(0),
        PACKED=c.mask_mode is MaskMode.QLEN_ONLY_BITPACKING,
        PREFIXED=c.mask_mode is MaskMode.FULL_MASK,
        FILL_PREFIX=c.mask_mode is MaskMode.FULL_MASK and c.fill_prefix_mask,
        WIDTH=widest,
        BLOCK=_BLOCK,
    )  # fmt: skip
    link_children[width, requests](parents, next_token, next_sibling, width, WIDTH=widest)
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


@dataclass(frozen=True)
class Lines:
    """One list of slots a row, in logical order, without what is shared."""

    indptr: Tensor  # (T+1,)
    indices: Tensor  # (indptr[-1],)


def lines(c: Candidates, x: VerifyInput, first_key: Tensor, shared_from: Tensor) -> Lines:
    """Keys of each row from logical index `first_key` (T,) on, prefix keys from `shared_from` (B,) on
    left out. A padded row's list is its root."""
    assert x.retrieve_parent_token is not None
    request = owners(x.qo_indptr)
    shared, prefix = shared_from[request], c.seq_lens[request]
    lengths = (shared - first_key).clamp(min=0) + x.positions + 1
    lengths = lengths - torch.maximum(first_key, prefix)
    local = torch.arange(len(request), device=request.device) - x.qo_indptr[request]
    lengths = torch.where(local < c.num_nodes[request], lengths, 1)
    indptr = pad(lengths.cumsum(0), (1, 0))
    indices = c.seq_lens.new_empty(int(indptr[-1]))
    list_rows[len(request),](
        indices, indptr, first_key, shared_from, x.retrieve_parent_token, request, x.qo_indptr,
        c.num_nodes, x.positions, x.out_cache_loc, c.seq_lens, c.request_slots, c.req_to_token,
        x.retrieve_parent_token.shape[1], c.req_to_token.stride(0), BLOCK=_BLOCK,
    )  # fmt: skip
    return Lines(indptr, indices)


def accept(x: VerifyInput, target_predict: Tensor) -> Accepted:
    """The greedy walk of every request, in one launch."""
    index, down, right = x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling
    if index is None or down is None or right is None:
        raise ValueError(
            "retrieve_index, next_token and next_sibling are needed, one was not built"
        )
    requests, width = index.shape
    accept_index = index.new_full((requests, x.spec_steps + 1), -1)
    tokens, accept_len = torch.full_like(accept_index, -1), index.new_empty(requests)
    accept_greedily[requests,](
        x.draft_token, target_predict, index, down, right, accept_index, accept_len, tokens,
        width, x.spec_steps,
    )  # fmt: skip
    return Accepted(accept_index=accept_index, accept_len=accept_len, tokens=tokens)


def commit(x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor) -> Committed:
    """K and V of accepted rows to the columns that follow the prefix, one launch each."""
    requests, width = accepted.accept_index.shape
    for cache in (k_cache, v_cache):
        moved = as_integers(cache)
        compact[requests, cache.shape[1]](
            moved, accepted.accept_index, x.out_cache_loc, x.seq_lens, x.request_slots,
            x.req_to_token, width, moved.stride(0), moved.stride(1), x.req_to_token.stride(0),
            LANES=cache.shape[2],
            WIDTH=triton.next_power_of_2(width),
            BLOCK=triton.next_power_of_2(cache.shape[2]),
        )  # fmt: skip
    last = accepted.accept_len[:, None] - 1
    return Committed(
        seq_lens=x.seq_lens + accepted.accept_len, next_root=accepted.tokens.gather(1, last)[:, 0]
    )


def owners(indptr: Tensor) -> Tensor:
    """(indptr[-1],) which list each entry of a ragged list belongs to."""
    lengths = indptr.diff()
    return torch.arange(len(lengths), device=indptr.device).repeat_interleave(lengths)


def as_integers(t: Tensor) -> Tensor:
    """The same bits as signed integers, for kernels that only move or test them."""
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.view(by_size[t.element_size()])


def _cells(c: Candidates) -> Tensor:
    """(B,) cells, or items, of each request's mask."""
    if c.mask_mode is MaskMode.FULL_MASK:
        return c.num_rows * (c.seq_lens + c.num_rows)
    return c.num_rows * c.num_rows if c.mask_mode is MaskMode.QLEN_ONLY else c.num_rows
