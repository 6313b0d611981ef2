"""Tables of the prefix keys: slot lists and page tables."""

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
    page, device = c.kv.page_size, c.seq_lens.device
    slots = c.req_to_token.index_select(0, c.request_slots)
    bounds = torch.tensor([0, *accumulate(prefix_lens)], device=device)
    total = sum(prefix_lens)
    request = torch.repeat_interleave(c.seq_lens, output_size=total)
    column = torch.arange(total, device=device) - bounds[request]
    pages = max(1, *(-(-prefix // page) for prefix in prefix_lens))
    heads = slots[:, : pages * page : page] // page
    begins = torch.arange(heads.shape[1], device=device) * page
    page_table = slots.new_full((len(slots), pages), c.kv.page_table_pad // page)
    own = begins < c.seq_lens[:, None]
    page_table[:, : heads.shape[1]] = torch.where(own, heads, c.kv.page_table_pad // page)
    return PrefixTables(
        kv_indptr=bounds,
        kv_indices=slots[request, column],
        page_table=page_table,
        cache_seqlens=c.seq_lens,
    )
