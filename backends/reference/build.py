"""Candidates to verify input, with every field built: what a partial builder is completed from."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from treeproof.backends.reference.mask import write_mask
from treeproof.backends.reference.tables import prefix_tables, window_starts
from treeproof.backends.reference.tree import links, parent_rows, upward_walks
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
    rows, nodes = c.num_rows.tolist(), c.num_nodes.tolist()
    prefix_lens = c.seq_lens.tolist()
    qo_indptr = [0, *accumulate(rows)]
    parents = _parents(c, nodes)
    walks = [upward_walks(p, c.spec_steps) for p in parents]
    offsets = write_mask(c, walks, prefix_lens, rows)
    positions = _positions(walks, prefix_lens, rows)
    device = c.seq_lens.device
    tables = prefix_tables(c, prefix_lens)
    return VerifyInput(
        draft_token=_draft_token(c, rows, nodes),
        positions=torch.tensor(positions, device=device),
        seq_lens=c.seq_lens,
        qo_indptr=torch.tensor(qo_indptr, device=device),
        out_cache_loc=_out_cache_loc(c, rows, nodes, prefix_lens),
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
        kv_start=window_starts(positions, c.shape.window, device),
        page_table=tables.page_table,
        cache_seqlens=tables.cache_seqlens,
        **_link_tables(parents, qo_indptr, max(rows), device),
    )


def _parents(c: Candidates, nodes: list[int]) -> list[list[int]]:
    return [
        parent_rows(selected[: real - 1], parent_list, c.topk)
        for selected, parent_list, real in zip(
            c.selected_index.tolist(), c.parent_list.tolist(), nodes, strict=True
        )
    ]


def _positions(walks: list[list[list[int]]], prefix_lens: list[int], rows: list[int]) -> list[int]:
    positions = []
    for walk, prefix, count in zip(walks, prefix_lens, rows, strict=True):
        positions += [prefix + len(above) for above in walk] + [0] * (count - len(walk))
    return positions


def _draft_token(c: Candidates, rows: list[int], nodes: list[int]) -> Tensor:
    bonus, drafts = c.bonus_tokens.tolist(), c.draft_token.tolist()
    tokens = []
    for b, (count, real) in enumerate(zip(rows, nodes, strict=True)):
        tokens += [bonus[b], *drafts[b][: real - 1]] + [0] * (count - real)
    return torch.tensor(tokens, device=c.seq_lens.device)


def _out_cache_loc(
    c: Candidates, rows: list[int], nodes: list[int], prefix_lens: list[int]
) -> Tensor:
    slots = []
    for table_row, prefix, count, real in zip(
        c.request_slots.tolist(), prefix_lens, rows, nodes, strict=True
    ):
        slots.append(c.req_to_token[table_row, prefix : prefix + real])
        slots.append(slots[-1].new_full((count - real,), c.kv.pad_slot))
    return torch.cat(slots)


def _link_tables(
    parents: list[list[int]], qo_indptr: list[int], width: int, device: torch.device
) -> dict[str, Tensor]:
    """The four (B, Nmax) link tables, -1 padded."""
    tables: dict[str, list[list[int]]] = {
        "retrieve_index": [],
        "retrieve_next_token": [],
        "retrieve_next_sibling": [],
        "retrieve_parent_token": [],
    }
    for b, up in enumerate(parents):
        next_token, next_sibling = links(up)
        own = list(range(qo_indptr[b], qo_indptr[b] + len(up)))
        for table, row in zip(tables.values(), (own, next_token, next_sibling, up), strict=True):
            table.append(row + [-1] * (width - len(row)))
    return {name: torch.tensor(table, device=device) for name, table in tables.items()}
