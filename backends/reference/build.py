"""Candidates to verify input, with every field built: what a partial builder is completed from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treeproof.backends.reference.mask import write_mask
from treeproof.backends.reference.tables import prefix_tables
from treeproof.backends.reference.tree import Bools, Ints, links, on_host, parent_rows, walk_up
from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Candidates, VerifyInput


def build(c: Candidates) -> VerifyInput:
    """Every field of `VerifyInput` from the selected candidates.

    The mask goes into `c.mask_buffer`, in place, in the layout asked for. `kv_indices` and
    `page_table` list the P_b prefix keys of each request; `kv_start` is the first logical index
    inside each row's window (0 where there is none). Padded rows: token 0, position 0, the pad slot,
    links -1. A malformed selection is built as `reference.tree` defines it.
    """
    note("build")
    device = c.seq_lens.device
    rows, nodes, prefix_lens = map(on_host, (c.num_rows, c.num_nodes, c.seq_lens))
    width = int(rows.max())
    index = np.arange(width)
    is_row, is_node = index < rows[:, None], index < nodes[:, None]
    selected = on_host(c.selected_index)[:, : width - 1]
    parents = parent_rows(selected, is_node[:, 1:], on_host(c.parent_list), c.topk)
    walks = walk_up(parents, nodes, c.spec_steps)
    offsets = write_mask(c, walks.meets, prefix_lens, rows)
    qo_indptr = np.concatenate([[0], rows.cumsum()])
    positions = np.where(is_node, prefix_lens[:, None] + walks.depth, 0)[is_row]
    tables = prefix_tables(c, prefix_lens.tolist())
    next_token, next_sibling = links(parents)
    linked = {
        "retrieve_index": qo_indptr[:-1, None] + index,
        "retrieve_next_token": next_token,
        "retrieve_next_sibling": next_sibling,
        "retrieve_parent_token": parents,
    }

    def on_device(values: Ints) -> Tensor:
        return torch.from_numpy(values).to(device)

    return VerifyInput(
        draft_token=on_device(_tokens(c, is_node)[is_row]),
        positions=on_device(positions),
        seq_lens=c.seq_lens,
        qo_indptr=on_device(qo_indptr),
        out_cache_loc=_out_cache_loc(c, is_row, is_node, prefix_lens),
        request_slots=c.request_slots,
        req_to_token=c.req_to_token,
        topk=c.topk,
        spec_steps=c.spec_steps,
        shape=c.shape,
        kv=c.kv,
        custom_mask=c.mask_buffer,
        mask_indptr=torch.tensor(offsets, device=device),
        mask_mode=c.mask_mode,
        kv_indptr=tables.kv_indptr,
        kv_indices=tables.kv_indices,
        kv_start=on_device(_window_starts(positions, c.shape.window)),
        page_table=tables.page_table,
        cache_seqlens=tables.cache_seqlens,
        **{name: on_device(np.where(is_node, table, -1)) for name, table in linked.items()},
    )


def _tokens(c: Candidates, is_node: Bools) -> Ints:
    """(B, Nmax): the bonus token, then the drafts; 0 in padding."""
    tokens = np.concatenate([on_host(c.bonus_tokens)[:, None], on_host(c.draft_token)], axis=1)
    return np.where(is_node, tokens[:, : is_node.shape[1]], 0)


def _out_cache_loc(c: Candidates, is_row: Bools, is_node: Bools, prefix_lens: Ints) -> Tensor:
    """(T,) the slot of logical column P_b + row; of padded rows, the pad slot."""
    request, row = is_row.nonzero()
    column = np.where(is_node[is_row], prefix_lens[request] + row, -1)
    at = torch.from_numpy(np.stack([request, column])).to(c.seq_lens.device)
    slots = c.req_to_token[c.request_slots[at[0]], at[1].clamp(min=0)]
    return torch.where(at[1] < 0, c.kv.pad_slot, slots)


def _window_starts(positions: Ints, window: int | None) -> Ints:
    """(T,) first logical index that each row may read: position - window + 1, at least 0."""
    return np.maximum(0, positions - window + 1) if window else np.zeros_like(positions)
