"""Faults of pages: partial ones, their numbers, and tables that are too narrow for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.attending import (
    LISTS,
    TABLES,
    each,
    edit,
    fault_of_attend,
    launch,
    lists,
    prefixes,
)
from treeproof.faults.fault import Plant
from treeproof.faults.launched import Row
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.tables import Rewrite, rewritten

_FOUR = (*TABLES, *LISTS)


def _by_length(keys: Callable[[int, int], int]) -> dict[str, Plant]:
    """A prefix of n keys on pages of p is taken for `keys(n, p)` long, within its last page."""

    def of(slots: list[int], b: int, x: VerifyInput) -> list[int]:
        length = keys(len(slots), x.kv.page_size)
        rest = range(1, length - len(slots) + 1)
        return [*slots[:length], *(slots[-1] + i for i in rest)]

    def shared(x: VerifyInput) -> VerifyInput:
        assert x.cache_seqlens is not None
        lengths = [keys(n, x.kv.page_size) for n in x.cache_seqlens.tolist()]
        return replace(x, cache_seqlens=x.cache_seqlens.new_tensor(lengths))

    return {**each(_FOUR, prefixes(of)), "cascade": launch(shared)}


_WHOLE_PAGES_ONLY = _by_length(lambda n, page: n // page * page)
_ROUNDED_UP = _by_length(lambda n, page: -(-n // page) * page)


def _without_partial_page(row: Row) -> Row:
    """Of the branches, only that of row 1 has the page that prefix and tree share."""
    if len(row.path) < 2 or row.path[1] == row.homes[1]:
        return row
    page = row.x.kv.page_size
    front = row.front[: len(row.front) // page * page]
    return replace(row, keys=(*front, *row.path))


def _moved(by: int, which: slice) -> dict[str, Plant]:
    """Page numbers of a prefix, or some of them, are off; round the cache where it ends."""

    def of(slots: list[int], b: int, x: VerifyInput) -> list[int]:
        page = x.kv.page_size
        pages = [slots[i : i + page] for i in range(0, len(slots), page)]
        for wrong in pages[which]:
            wrong[:] = [(slot + by * page) % x.kv.num_slots for slot in wrong]
        return [slot for held in pages for slot in held]

    def shared(x: VerifyInput) -> VerifyInput:
        assert x.page_table is not None
        table, total = x.page_table.clone(), x.kv.num_slots // x.kv.page_size
        assert x.cache_seqlens is not None
        for b, length in enumerate(x.cache_seqlens.tolist()):
            held = table[b, : -(-length // x.kv.page_size)]
            held[which] = (held[which] + by) % total
        return replace(x, page_table=table)

    return {**each(_FOUR, prefixes(of)), "cascade": launch(shared)}


def _in_units(slot_of: Callable[[int, int, int], int]) -> dict[str, Plant]:
    """Key i of a page lies at slot `slot_of(page number, i, page size)`, round the cache."""

    def of(slots: list[int], b: int, x: VerifyInput) -> list[int]:
        page = x.kv.page_size
        return [slot_of(slot // page, slot % page, page) % x.kv.num_slots for slot in slots]

    return each(_FOUR, prefixes(of))


_NUMBER_AS_SLOT = {
    **_in_units(lambda number, i, page: number + i),
    "cascade": edit(
        (
            "[requests, : -(-longest // page), None] * page",
            "[requests, : -(-longest // page), None]",
        )
    ),
}


def _times_page_size(x: VerifyInput) -> VerifyInput:
    assert x.page_table is not None
    pages = x.kv.num_slots // x.kv.page_size
    return replace(x, page_table=x.page_table * x.kv.page_size % pages)


_MULTIPLIED_TWICE = {
    **_in_units(lambda number, i, page: number * page * page + i),
    "cascade": launch(_times_page_size),
}


def _built(names: tuple[str, ...], rewrite: Rewrite) -> dict[str, Plant]:
    return each(names, lambda backend: rewritten(backend, rewrite))


def _spilled(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    """One cell more than a line has is written: it is the first one of the next line."""
    assert x.page_table is not None
    table = x.page_table.clone()
    if len(table) == len(x.draft_token):
        table[1:, :1] = x.out_cache_loc[:-1, None]
    else:
        table[1:, :1] = x.out_cache_loc[x.qo_indptr[:-2], None] // c.kv.page_size
    return {"page_table": table}


_CONTEXT = 8
"""Tables are as wide as a context, a multiple of this, that holds the prefix."""


def _context(c: Candidates) -> int:
    return -(-max(1, int(c.seq_lens.max())) // _CONTEXT) * _CONTEXT


def _copied(x: VerifyInput, c: Candidates) -> Mapping[str, Any]:
    assert x.page_table is not None
    table = x.page_table.new_zeros(len(x.page_table), _context(c))
    table[:, : x.page_table.shape[1]] = x.page_table
    return {"page_table": table}


def _clamped(x: VerifyInput, c: Candidates) -> Mapping[str, Any]:
    assert x.page_table is not None
    column = torch.arange(x.page_table.shape[1], device=x.page_table.device)
    return {"page_table": x.page_table[:, column.clamp(max=_context(c) - 1)]}


FAULTS = (
    fault_of_attend(
        "partial-page-dropped.every-row",
        "only whole pages of the prefix are read",
        _WHOLE_PAGES_ONLY,
        cause="partial-page-dropped",
        smallest=case(request(prefix=1), page_size=2),
        sources=("B043",),
    ),
    fault_of_attend(
        "partial-page-dropped.branches",
        "the last page of the prefix is copied for the first branch only",
        each(LISTS, lists(_without_partial_page)),
        cause="partial-page-dropped",
        smallest=case(request(FORK, prefix=1), page_size=2),
        sources=("sgl-project/sglang#7725",),
    ),
    fault_of_attend(
        "last-page-read-whole",
        "the last page of the prefix is read to its end",
        _ROUNDED_UP,
        cause="past-the-end",
        smallest=case(request(prefix=1), page_size=2),
        sources=("hw-native-sys/simpler#72",),
    ),
    fault_of_attend(
        "page-off-by-one.up",
        "entries of the page table are one page too far",
        _moved(1, slice(None)),
        cause="page-off-by-one",
        smallest=case(request(prefix=1)),
        sources=("vllm-project/vllm#55053",),
    ),
    fault_of_attend(
        "page-off-by-one.down",
        "entries of the page table are one page too near",
        _moved(-1, slice(None)),
        cause="page-off-by-one",
        smallest=case(request(prefix=1)),
        sources=("vllm-project/vllm#55053",),
    ),
    fault_of_attend(
        "page-off-by-one.last-page",
        "the last entry of a page table is one page too far",
        _moved(1, slice(-1, None)),
        cause="page-off-by-one",
        smallest=case(request(prefix=1)),
        sources=("vllm-project/vllm#55053",),
    ),
    fault_of_attend(
        "page-units.number-as-slot",
        "numbers of allocator pages are read in units of the kernel's own",
        _NUMBER_AS_SLOT,
        cause="page-units",
        smallest=case(request(prefix=1), page_size=2),
        sources=("B045",),
    ),
    fault_of_attend(
        "page-units.multiplied-twice",
        "page numbers that are slots already are multiplied by the page size",
        _MULTIPLIED_TWICE,
        cause="page-units",
        smallest=case(request(prefix=1), page_size=2, spare_pages=1),
        sources=("ROCm/ATOM#857",),
    ),
    fault_of_attend(
        "table-line-spills",
        "a line of a table is written one cell wider than it is, into the next line",
        _built(("page-table", "cascade"), _spilled),
        cause="unknown",
        smallest=case(request((-1, 0), prefix=1), request(prefix=1)),
        sources=("sgl-project/sglang#27360",),
        stage="build",
        evidence="declared",
    ),
    fault_of_attend(
        "table-narrow.copy-fails",
        "near the context limit lines do not fit into a table that has no room for the rows",
        _built(("page-table",), _copied),
        cause="raises",
        smallest=case(request(prefix=_CONTEXT)),
        sources=("B048", "sgl-project/sglang#35985"),
        stage="build",
        identity="contract",
    ),
    fault_of_attend(
        "table-narrow.clamped",
        "near the context limit reads past a table's width end at its last column",
        _built(("page-table",), _clamped),
        cause="unknown",
        smallest=case(request(prefix=_CONTEXT)),
        sources=("B048", "sgl-project/sglang#35985"),
        stage="build",
        evidence="declared",
    ),
)
