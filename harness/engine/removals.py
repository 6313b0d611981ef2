"""Each single thing that a case could do without: a smallest case is one that can lose none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.shape import AttentionShape
from treeproof.engine import scripted, simplify

Edit = Callable[[VerifyCase], VerifyCase]


def single_removals(case: VerifyCase) -> Iterator[Edit]:
    """Edits that leave out one step, request, node, prefix token, padded row, head or page of this case.

    A page is one of the cache, one of a prefix, one that is shared, or the half of every one.
    """
    yield from scripted.single_removals(case)
    count = len(case.requests)
    for b in range(count) if count > 1 else ():
        yield partial(simplify.keep_requests, kept=set(range(count)) - {b})
    for b, request in enumerate(case.requests):
        for edited in _of_request(request, case.layout.page_size):
            yield partial(_put, b=b, request=edited)
    for q, kv in one_head_less(case.shape):
        yield partial(simplify.with_shape, num_q_heads=q, num_kv_heads=kv)
    page = case.layout.page_size
    if case.layout.num_slots > page:
        yield partial(simplify.with_pages, count=case.layout.num_slots // page - 1)
    if case.layout.shared_prefix:
        yield partial(simplify.with_layout, shared_prefix=case.layout.shared_prefix - page)
    if page > 1:
        yield partial(simplify.with_layout, page_size=page // 2)


def _put(case: VerifyCase, b: int, request: Request) -> VerifyCase:
    return simplify.with_request(case, b, request)


def _of_request(request: Request, page: int) -> Iterator[Request]:
    nodes = range(request.num_nodes)
    for node in reversed(nodes[1:]):
        yield simplify.keep_nodes(request, [kept for kept in nodes if kept != node])
    for keys in sorted({1, page}):
        if request.prefix_len >= keys:
            yield simplify.with_prefix(request, request.prefix_len - keys)
    if request.pad_rows:
        yield simplify.with_pad_rows(request, request.pad_rows - 1)


def one_head_less(shape: AttentionShape) -> list[tuple[int, int]]:
    """Query and key heads without one key head and its queries, without one query head of every
    group, and with the next fewer key heads for the same queries."""
    q, kv, group = shape.num_q_heads, shape.num_kv_heads, shape.group_size
    fewer = next((k for k in range(kv - 1, 0, -1) if q % k == 0), 0)
    return [pair for pair in ((q - group, kv - 1), (q - kv, kv), (q, fewer)) if min(pair) > 0]
