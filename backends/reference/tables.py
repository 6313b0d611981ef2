"""Tables of the prefix keys: slot lists, page tables and window starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from treeproof.contract.inputs import Candidates


@dataclass(frozen=True)
class PrefixTables:
    """Where the prefix keys of each request lie, in slots and in pages."""

    kv_indptr: Tensor  # (B+1,)
    kv_indices: Tensor  # (sum P_b,) slots
    page_table: Tensor  # (B, pages) page ids; cells past a request's length hold the pad's page
    cache_seqlens: Tensor  # (B,) P_b


def prefix_tables(c: Candidates, prefix_lens: list[int]) -> PrefixTables:
    """Slot lists and page tables of the P_b prefix keys, in logical order.

    The page of `page_table_pad` fills cells past a request's length, and evicted ones.
    """
    page = c.kv.page_size
    slots = [
        c.req_to_token[row, :prefix]
        for row, prefix in zip(c.request_slots.tolist(), prefix_lens, strict=True)
    ]
    pages = max(1, *(-(-prefix // page) for prefix in prefix_lens))
    page_table = c.req_to_token.new_full((len(slots), pages), c.kv.page_table_pad // page)
    for b, own in enumerate(slots):
        heads = own[::page]
        page_table[b, : len(heads)] = heads // page
    return PrefixTables(
        kv_indptr=torch.tensor([0, *accumulate(prefix_lens)], device=c.seq_lens.device),
        kv_indices=torch.cat(slots),
        page_table=page_table,
        cache_seqlens=c.seq_lens,
    )


def window_starts(positions: list[int], window: int | None, device: torch.device) -> Tensor:
    """(T,) first logical index that each row may read: position - window + 1, at least 0."""
    reach = window or max(positions, default=0) + 1
    return torch.tensor([max(0, t - reach + 1) for t in positions], device=device)
