"""What a row reads, written out: pages that the rows of a request share, and a list of slots a row."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.kernels.launching import at_once
from treeproof.backends.kernels.stages import build, owners
from treeproof.backends.kernels.tree_build import list_rows
from treeproof.contract.inputs import Candidates, VerifyInput

_BLOCK = 128
"""Cells of a row that a program writes at once."""


def lists(c: Candidates) -> VerifyInput:
    """The whole list of each row, and where in it the row's window begins; no mask."""
    x = build(c)
    indptr, indices = _written(c, x, torch.zeros_like(c.seq_lens), c.seq_lens)
    lengths = indptr.diff()
    window = c.shape.window or int(lengths.max())
    return replace(
        x, custom_mask=None, mask_indptr=None, mask_mode=None, kv_indptr=indptr,
        kv_indices=indices, kv_start=(lengths - window).clamp(min=0),
    )  # fmt: skip


def pages_and_lists(c: Candidates) -> VerifyInput:
    """Whole pages of the prefix that every row sees; a list a row of what it sees besides; no mask."""
    x, page = build(c), c.kv.page_size
    request = owners(x.qo_indptr, len(x.positions))
    first = torch.zeros_like(x.positions)
    if c.shape.window is not None:
        first = (x.positions - c.shape.window + 1).clamp(min=0)
    lowest = first[x.qo_indptr[:-1]]  # the root's: lists begin there, and kv_start cuts them
    # A request's last first key, rounded up to a page: from there on every row sees the prefix.
    latest = torch.zeros_like(c.seq_lens).scatter_reduce_(0, request, first, "amax")
    start = torch.minimum(c.seq_lens, (latest + page - 1) // page * page)
    indptr, indices = _written(c, x, lowest, start)
    pages = -(-int((c.seq_lens - start).max()) // page)
    column = start[:, None] + page * torch.arange(pages, device=start.device)
    # Shorter requests run past the table.
    column = column.clamp(max=c.req_to_token.shape[1] - 1)
    return replace(
        x, custom_mask=None, mask_indptr=None, mask_mode=None,
        kv_indptr=indptr, kv_indices=indices,
        # A padded row is at position 0, and its list is its root.
        kv_start=(first - lowest[request]).clamp(min=0),
        page_table=c.req_to_token[c.request_slots[:, None], column] // page,
        cache_seqlens=c.seq_lens - start,
    )  # fmt: skip


def _written(
    c: Candidates, x: VerifyInput, first_key: Tensor, shared_from: Tensor
) -> tuple[Tensor, Tensor]:
    """Bounds (T+1,) and slots of a list a row: prefix keys from `first_key` (B,) to `shared_from` (B,),
    and then its path. A padded row's list is its root."""
    assert x.retrieve_parent_token is not None
    request = owners(x.qo_indptr, len(x.positions))
    front = (shared_from - first_key)[request]
    lengths = front + x.positions + 1 - c.seq_lens[request]
    local = torch.arange(len(request), device=request.device) - x.qo_indptr[request]
    lengths = torch.where(local < c.num_nodes[request], lengths, 1)
    indptr = pad(lengths.cumsum(0), (1, 0))
    indices = c.seq_lens.new_empty(int(indptr[-1]))
    together = at_once(len(request), _BLOCK)
    list_rows[triton.cdiv(len(request), together),](
        indices, indptr, first_key, shared_from, x.retrieve_parent_token, request, x.qo_indptr,
        c.num_nodes, x.positions, x.out_cache_loc, c.seq_lens, c.request_slots, c.req_to_token,
        len(request), x.retrieve_parent_token.shape[1], c.req_to_token.stride(0),
        UNITS=together, BLOCK=_BLOCK,
    )  # fmt: skip
    return indptr, indices
