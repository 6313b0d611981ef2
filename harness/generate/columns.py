"""The columns of all requests of a case as tensors on one device, worked out there from the pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from treeproof.generate.sending import sent

if TYPE_CHECKING:
    from torch import Tensor

    from treeproof.contract.ledger import SlotLedger


@dataclass(frozen=True)
class Columns:
    """Logical columns, (n,) each: slot (-1: evicted), request, column, and whether it belongs to the
    prefix."""

    slot: Tensor
    request: Tensor
    column: Tensor
    in_prefix: Tensor

    def of(self, index: Tensor) -> Columns:
        return Columns(*(part[index] for part in vars(self).values()))


@lru_cache(maxsize=2)
def columns(ledger: SlotLedger, device: str) -> Columns:
    """All columns of all requests, one request after the other."""
    import torch

    requests, page, total = ledger.case.requests, ledger.page_size, sum(ledger.lengths)
    of_requests = [ledger.lengths, [r.prefix_len for r in requests], ledger.first_page]
    told = sent([list(each) for each in of_requests], device)
    pages = sent(ledger.flat_pages, device)
    request = torch.arange(len(requests), device=device)
    request = request.repeat_interleave(told[0], output_size=total)
    begin, prefix, first_page = (
        torch.stack((told[0].cumsum(0) - told[0], *told[1:])).index_select(1, request)
    )  # fmt: skip
    column = torch.arange(total, device=device) - begin
    slot = pages[first_page + column // page] * page + column % page
    if (ledger.flat_pages < 0).any():
        slot = torch.where(slot < 0, -1, slot)
    return Columns(slot, request, column, column < prefix)
