"""Faults of evicted pages: prefix pages that no window reaches, given back and read all the same."""

from __future__ import annotations

from dataclasses import replace

from treeproof.contract.inputs import VerifyInput
from treeproof.faults.attending import LISTS, TABLES, each, fault_of_attend, launch, lists
from treeproof.faults.fault import Plant
from treeproof.faults.launched import Row, with_window
from treeproof.faults.smallest import case, request


def _evicted(x: VerifyInput, prefix: int) -> int:
    """Leading columns of a prefix whose pages were given back."""
    window, page = x.shape.window, x.kv.page_size
    if window is None or not x.kv.evicted:
        return 0
    return max(0, prefix - window + 1) // page * page


def _reused_by(x: VerifyInput, request: int) -> int:
    """The slot of the next request's root: where a page given back may be by now."""
    return int(x.out_cache_loc[x.qo_indptr[:-1].roll(-1)[request]])


def _reads_evicted(stale: bool) -> dict[str, Plant]:
    """Cells of evicted pages are read; where they are stale another request has their pages."""

    def of_row(row: Row) -> Row:
        gone = _evicted(row.x, row.prefix_len)
        if not gone:
            return row
        named = (_reused_by(row.x, row.request),) * gone if stale else row.keys[:gone]
        return replace(row, keys=(*named, *row.keys[gone:]), cut=0)

    def of_table(x: VerifyInput) -> VerifyInput:
        table = x.req_to_token.clone()
        gone = [_evicted(x, prefix) for prefix in x.seq_lens.tolist()]
        for b, (row, count) in enumerate(zip(x.request_slots.tolist(), gone, strict=True)):
            if stale:
                table[row, :count] = _reused_by(x, b)
        return replace(with_window(x, None) if any(gone) else x, req_to_token=table)

    return {**each(LISTS, lists(of_row)), **each(TABLES, launch(of_table))}


FAULTS = (
    fault_of_attend(
        "evicted-page-read.stale",
        "cells of evicted pages are not cleared, and read once another request has the pages",
        _reads_evicted(stale=True),
        cause="evicted-page-read",
        smallest=case(request(prefix=1), request(), window=1, layout={"evicted": True}),
        sources=("B046",),
    ),
    fault_of_attend(
        "evicted-page-read.cleared",
        "cells of evicted pages are neutral, and are read all the same",
        _reads_evicted(stale=False),
        cause="evicted-page-read",
        smallest=case(request(prefix=1), window=1, layout={"evicted": True}),
        sources=("B046",),
    ),
)
