"""Faults of the prefix: which of its keys a launch reads, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from treeproof.contract.inputs import VerifyInput
from treeproof.faults.attending import (
    LISTS,
    TABLES,
    each,
    edit,
    fault_of_attend,
    launch,
    prefixes,
)
from treeproof.faults.fault import Plant
from treeproof.faults.smallest import case, request

_FOUR = (*TABLES, *LISTS)
_PAIR = (-1, 0)


def _shared_pages(change: Callable[[VerifyInput], VerifyInput]) -> dict[str, Plant]:
    return {"cascade": launch(change)}


def _shared_length(change: Callable[[torch.Tensor, int], torch.Tensor]) -> dict[str, Plant]:
    """The length of the shared part, as a function of it and the page size."""

    def of(x: VerifyInput) -> VerifyInput:
        assert x.cache_seqlens is not None
        return replace(x, cache_seqlens=change(x.cache_seqlens, x.kv.page_size))

    return _shared_pages(of)


def last_missing(later: bool) -> dict[str, Plant]:
    """The last key of each prefix is not read; `later`: but for that of the first request."""

    def shorter(slots: list[int], b: int, x: VerifyInput) -> list[int]:
        return slots if later and b == 0 else slots[:-1]

    def length(lengths: torch.Tensor, page: int) -> torch.Tensor:
        fewer = (lengths - 1).clamp(min=0)
        return torch.cat([lengths[:1], fewer[1:]]) if later else fewer

    return {**each(_FOUR, prefixes(shorter)), **_shared_length(length)}


def _with_root(slots: list[int], b: int, x: VerifyInput) -> list[int]:
    return [*slots, int(x.out_cache_loc[x.qo_indptr[b]])]


def _with_page_of_root(x: VerifyInput) -> VerifyInput:
    """Shared pages as long as the length says; the root may begin a page of its own."""
    table, lengths = x.page_table, x.cache_seqlens
    assert table is not None
    assert lengths is not None
    page = x.kv.page_size
    table = torch.nn.functional.pad(table, (0, 1))
    roots = x.out_cache_loc[x.qo_indptr[:-1]] // page
    table.scatter_(1, (lengths // page)[:, None], roots[:, None].to(table.dtype))
    return replace(x, page_table=table, cache_seqlens=lengths + 1)


_ROOT_INSIDE = {**each(_FOUR, prefixes(_with_root)), **_shared_pages(_with_page_of_root)}

_TWICE = {
    **each(_FOUR, prefixes(lambda slots, b, x: slots * 2)),
    "cascade": edit(
        (
            "out, lse = merge(prefix, prefix_lse, suffix, suffix_lse)",
            "out, lse = merge(prefix, prefix_lse, suffix, suffix_lse)\n"
            "        out, lse = merge(prefix, prefix_lse, out, lse)",
        )
    ),
}

_DROPPED = {
    **each(_FOUR, prefixes(lambda slots, b, x: [] if b else slots)),
    "cascade": edit(
        (
            "bounds, sizes = x.qo_indptr.tolist(), lengths.tolist()",
            "bounds, sizes = x.qo_indptr.tolist(), [int(lengths[0])] + [0] * (len(lengths) - 1)",
        )
    ),
}


def _in_order(slots: list[int], b: int, x: VerifyInput) -> list[int]:
    return [(slots[0] + i) % x.kv.num_slots for i in range(len(slots))]


def _pages_in_order(x: VerifyInput) -> VerifyInput:
    table = x.page_table
    assert table is not None
    in_order = table[:, :1] + torch.arange(table.shape[1], device=table.device)
    return replace(x, page_table=in_order % (x.kv.num_slots // x.kv.page_size))


_CONTIGUOUS = {**each(_FOUR, prefixes(_in_order)), **_shared_pages(_pages_in_order)}


def _past_its_end(slots: list[int], b: int, x: VerifyInput) -> list[int]:
    """The column after the last row's, whatever the token table holds there."""
    rows = int(x.qo_indptr[b + 1] - x.qo_indptr[b])
    column = min(int(x.seq_lens[b]) + rows, x.req_to_token.shape[1] - 1)
    return [*slots, int(x.req_to_token[x.request_slots[b], column])]


_PAST_THE_END = each(TABLES, prefixes(_past_its_end))


def _with_all_rows(slots: list[int], b: int, x: VerifyInput) -> list[int]:
    return [*slots, *x.out_cache_loc[x.qo_indptr[b] : x.qo_indptr[b + 1]].tolist()]


_ROWS_INSIDE = each(_FOUR, prefixes(_with_all_rows))


def _halved(stale: bool) -> dict[str, Plant]:
    """At page size 1 half of the prefix is indexed; the rest is stale, or left out."""

    def half(slots: list[int], b: int, x: VerifyInput) -> list[int]:
        if x.kv.page_size > 1:
            return slots
        done = (len(slots) + 1) // 2
        return [*slots[:done], *[0] * (len(slots) - done) * stale]

    def pages(x: VerifyInput) -> VerifyInput:
        table, lengths = x.page_table, x.cache_seqlens
        assert table is not None
        assert lengths is not None
        if x.kv.page_size > 1:
            return x
        done = (lengths + 1) // 2
        if not stale:
            return replace(x, cache_seqlens=done)
        page = torch.arange(table.shape[1], device=table.device)
        return replace(x, page_table=torch.where(page < done[:, None], table, 0))

    return {**each(_FOUR, prefixes(half)), **_shared_pages(pages)}


FAULTS = (
    fault_of_attend(
        "prefix-last-key-missing.every-request",
        "the length was not advanced by the key that the last step wrote",
        last_missing(later=False),
        cause="prefix-last-key-missing",
        smallest=case(request(prefix=1)),
        sources=("Ascend/sglang#141",),
    ),
    fault_of_attend(
        "prefix-last-key-missing.later-requests",
        "the length was advanced for the first request only",
        last_missing(later=True),
        cause="prefix-last-key-missing",
        smallest=case(request(), request(prefix=1)),
        sources=("Ascend/sglang#141",),
    ),
    fault_of_attend(
        "root-inside-prefix",
        "the length of the prefix counts the root, which rows read again on their path",
        _ROOT_INSIDE,
        cause="root-inside-prefix",
        smallest=case(request(prefix=1)),
        sources=("microsoft/onnxruntime-genai#2354", "vllm-project/vllm#11635"),
    ),
    fault_of_attend(
        "rows-inside-prefix",
        "the length of the prefix counts the rows of this step",
        _ROWS_INSIDE,
        cause="past-the-end",
        smallest=case(request(_PAIR)),
        sources=("B048",),
    ),
    fault_of_attend(
        "prefix-twice",
        "the shared prefix is read once as a level of its own and once in the list of each row",
        _TWICE,
        cause="prefix-twice",
        smallest=case(request(prefix=1)),
        sources=("vllm-project/vllm#15710",),
    ),
    fault_of_attend(
        "prefix-dropped.later-requests",
        "only the first request's rows read their prefix",
        _DROPPED,
        cause="prefix-dropped",
        smallest=case(request(), request(prefix=1)),
        sources=("B020",),
    ),
    fault_of_attend(
        "prefix-contiguous",
        "the prefix is read as one range from its first slot on, round the cache",
        _CONTIGUOUS,
        cause="contiguous-range",
        smallest=case(request(prefix=2), request(), layout={"order": "interleaved"}),
        sources=("B043", "hw-native-sys/pypto#470"),
    ),
    fault_of_attend(
        "past-the-end",
        "one column after the last row's is read as well",
        _PAST_THE_END,
        cause="past-the-end",
        smallest=case(request()),
        sources=("pegainfer-project/pegainfer#291",),
    ),
    fault_of_attend(
        "list-cut-short.missing",
        "at page size 1 a loop of fixed length indexes half of the keys",
        _halved(stale=False),
        cause="list-cut-short",
        smallest=case(request(prefix=2)),
        sources=("B044",),
    ),
    fault_of_attend(
        "list-cut-short.stale",
        "at page size 1 half of the list holds what was there before",
        _halved(stale=True),
        cause="list-cut-short",
        smallest=case(request(prefix=2)),
        sources=("B044",),
    ),
)
