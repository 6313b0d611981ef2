"""Every case that lacks one thing of a given case: what a smallest case must not allow.

Written from the words of the promise (no single node, request, prefix token, padded row, head or
page can go) and from nothing of the reducer: an edit that the reducer forgot is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree


def lacking_one(case: VerifyCase) -> Iterator[tuple[str, VerifyCase]]:
    """What is gone, in words, and the case without it; only cases that are valid."""
    for what, changes in _changes(case):
        try:
            yield what, _roomy(case, changes)
        except ValueError:
            continue


def _changes(case: VerifyCase) -> Iterator[tuple[str, dict[str, Any]]]:
    requests = case.requests
    for b, request in enumerate(requests):
        before, after = requests[:b], requests[b + 1 :]
        if len(requests) > 1:
            yield f"request {b}", {"requests": before + after}
        for what, less in _smaller_requests(request, case.layout.page_size):
            yield f"{what} of request {b}", {"requests": (*before, less, *after)}
    for q, kv in _fewer_heads(case.shape):
        shape = replace(case.shape, num_q_heads=q, num_kv_heads=kv)
        yield f"heads down to {q} and {kv}", {"shape": shape}
    yield from _fewer_pages(case)


def _smaller_requests(request: Request, page: int) -> Iterator[tuple[str, Request]]:
    for node in range(1, len(request.tree)):
        yield f"node {node}", _without_node(request, node)
    for keys in sorted({1, page}):
        if request.prefix_len >= keys:
            left = request.prefix_len - keys
            tokens = request.prefix_tokens[:left]
            shorter = replace(request, prefix_len=left, prefix_tokens=tokens)
            yield f"{keys} keys of prefix", shorter
    if request.pad_rows:
        yield "a padded row", replace(request, pad_rows=request.pad_rows - 1)


def _without_node(request: Request, gone: int) -> Request:
    """Its children go to its parent; all rows after its own move up by one."""
    tree = request.tree
    kept = [node for node in range(len(tree)) if node != gone]
    parents = []
    for node in kept:
        parent = tree.parents[node] if tree.parents[node] != gone else tree.parents[gone]
        parents.append(parent - (parent > gone))
    tokens = [tree.tokens[node] for node in kept]
    for node in range(len(kept)):
        siblings = [tokens[other] for other in range(node) if parents[other] == parents[node]]
        while tokens[node] in siblings:
            tokens[node] = max(tree.tokens) + 1 + node
    rows = [request.row_of_node[node] for node in kept]
    row = request.row_of_node[gone]
    return replace(
        request,
        tree=CandidateTree(tuple(tokens), tuple(parents)),
        row_of_node=tuple(r - (r > row) for r in rows),
    )


def _fewer_heads(shape: AttentionShape) -> Iterator[tuple[int, int]]:
    """One key head with its queries, one query head of every group, or one key head alone."""
    q, kv = shape.num_q_heads, shape.num_kv_heads
    wanted = [(q - q // kv, kv - 1), (q - kv, kv)]
    wanted += [(q, fewer) for fewer in range(kv - 1, 0, -1) if q % fewer == 0][:1]
    return ((q, kv) for q, kv in wanted if q > 0 and kv > 0)


def _fewer_pages(case: VerifyCase) -> Iterator[tuple[str, dict[str, Any]]]:
    layout = case.layout
    page = layout.page_size
    if layout.num_slots > page:
        slots = layout.num_slots - page
        pad = min(layout.page_table_pad, slots - 1)
        yield "a page", {"layout": replace(layout, num_slots=slots, page_table_pad=pad)}
    if layout.shared_prefix:
        yield (
            "a shared page",
            {"layout": replace(layout, shared_prefix=layout.shared_prefix - page)},
        )
    if page > 1:
        half = page // 2
        smaller = replace(
            layout,
            page_size=half,
            num_slots=-(-layout.num_slots // half) * half,
            shared_prefix=layout.shared_prefix // half * half,
        )
        yield "half of every page", {"layout": smaller}


def _roomy(case: VerifyCase, changes: dict[str, Any]) -> VerifyCase:
    """The changed case; sharing and eviction as far as they are still possible."""
    requests = changes.get("requests", case.requests)
    layout = changes.get("layout", case.layout)
    shortest = min(request.prefix_len for request in requests)
    whole = min(layout.shared_prefix, shortest) // layout.page_size * layout.page_size
    layout = replace(layout, shared_prefix=whole)
    if whole < case.layout.shared_prefix:  # what was shared once is needed for each request now
        more = (len(requests) - 1) * case.layout.shared_prefix
        slots = layout.num_slots + -(-more // layout.page_size) * layout.page_size
        layout = replace(layout, num_slots=slots)
    return replace(case, **{**changes, "layout": layout})
