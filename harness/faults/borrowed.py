"""Faults of whose prefix is read: another request's, the first one's, that of a row's number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from treeproof.contract.inputs import VerifyInput
from treeproof.faults.attending import LISTS, TABLES, each, edit, fault_of_attend, launch, lists
from treeproof.faults.fault import Plant
from treeproof.faults.launched import Row
from treeproof.faults.smallest import case, request


def _of_request(whose: Callable[[int, int], int]) -> dict[str, Plant]:
    """Request b of B reads the prefix of request `whose(b, B)`, as long as its own where it can."""

    def borrowed(x: VerifyInput) -> VerifyInput:
        count = len(x.request_slots)
        order = torch.tensor([whose(b, count) for b in range(count)])
        if x.page_table is None:
            return replace(x, request_slots=x.request_slots[order])
        return replace(x, page_table=x.page_table[order])

    def of_row(row: Row) -> Row:
        starts = row.x.qo_indptr.tolist()
        other = whose(row.request, len(starts) - 1)
        theirs = _front_of(row.x, starts[other], int(row.x.seq_lens[other]))
        front = (*theirs[: len(row.front)], *row.front[len(theirs) :])
        return replace(row, keys=(*front, *row.path))

    return {
        **each((*TABLES, "cascade"), launch(borrowed)),
        **each(LISTS, lists(of_row)),
    }


def _front_of(x: VerifyInput, row: int, prefix: int) -> tuple[int, ...]:
    """Prefix slots in the list or line of one row of the launch."""
    if x.kv_indices is not None:
        assert x.kv_indptr is not None
        begin = int(x.kv_indptr[row])
        return tuple(x.kv_indices[begin : begin + prefix].tolist())
    assert x.page_table is not None
    return tuple(x.page_table[row, :prefix].tolist())


def _of_its_row(row: Row) -> Row:
    """A row takes its place in the launch for its request, and the last one where there is none."""
    starts = row.x.qo_indptr.tolist()
    other = min(starts[row.request] + row.row, len(starts) - 2)
    theirs = _front_of(row.x, starts[other], int(row.x.seq_lens[other]))
    front = (*theirs[: len(row.front)], *row.front[len(theirs) :])
    return replace(row, keys=(*front, *row.path))


_ROW_AS_REQUEST = {
    "cascade": edit(
        (
            "prefix, prefix_lse = _prefix_pass(x, grouped, k_cache, v_cache)\n",
            "row = torch.arange(len(q) + 1, device=q.device)\n"
            "        b = row[:-1].clamp(max=len(x.qo_indptr) - 2)\n"
            "        from dataclasses import replace\n"
            "        pages, lengths = _built(x.page_table)[b], _built(x.cache_seqlens)[b]\n"
            "        of_row = replace(x, qo_indptr=row, page_table=pages, cache_seqlens=lengths)\n"
            "        prefix, prefix_lse = _prefix_pass(of_row, grouped, k_cache, v_cache)\n",
        ),
    ),
    **each(LISTS, lists(_of_its_row)),
}

_BY_BATCH_INDEX = {
    "direct-mask": edit(("stride, table_rows[b], start", "stride, b, start")),
    "topology": edit(("table_rows[b] * x.req_to_token", "b * x.req_to_token")),
}


FAULTS = (
    fault_of_attend(
        "prefix-of-neighbour.before",
        "the prefix of the request before is read",
        _of_request(lambda b, count: (b - 1) % count),
        cause="neighbour-request",
        smallest=case(request(prefix=1), request(prefix=1)),
        sources=("B003", "B090"),
    ),
    fault_of_attend(
        "prefix-of-neighbour.first",
        "all requests read the prefix of the first",
        _of_request(lambda b, count: 0),
        cause="neighbour-request",
        smallest=case(request(prefix=1), request(prefix=1)),
        sources=("vllm-project/vllm#55227",),
    ),
    fault_of_attend(
        "prefix-of-neighbour.batch-index",
        "the token table is read at the place of a request in the batch, not at its slot",
        _BY_BATCH_INDEX,
        cause="neighbour-request",
        smallest=case(request(prefix=1)),
        sources=("B003",),
    ),
    fault_of_attend(
        "row-as-request",
        "tables that have a line a request are read at the place of a row in the launch",
        _ROW_AS_REQUEST,
        cause="row-as-request",
        smallest=case(request((-1, 0), prefix=1), request(prefix=1)),
        sources=("B034",),
    ),
)
