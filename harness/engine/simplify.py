"""Edits that make a case simpler. Each returns a new case or raises ValueError where it cannot be.

Nodes keep their order, rows keep their order among those that stay, and the cache grows where an
edit needs more pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.layout import KVLayout, MaskLayout
from treeproof.contract.script import requests_of
from treeproof.contract.shape import Full, Window
from treeproof.contract.tree import CandidateTree
from treeproof.engine.scripted import following, renumbered


def with_request(case: VerifyCase, index: int, request: Request) -> VerifyCase:
    requests = (*case.requests[:index], request, *case.requests[index + 1 :])
    return _fitted(case, requests=requests)


def keep_requests(case: VerifyCase, kept: Collection[int]) -> VerifyCase:
    new = {b: i for i, b in enumerate(sorted(kept))}
    script = renumbered(case.script, new)
    return _fitted(case, requests=tuple(case.requests[b] for b in new), script=script)


def as_one(case: VerifyCase, kept: int, gone: int) -> VerifyCase:
    """A request of a script does in the end what another one does, too, which goes."""
    numbers = range(len(case.requests))
    steps = tuple(sorted(case.script, key=lambda step: gone in requests_of(step)))
    script = renumbered(steps, {b: kept if b == gone else b for b in numbers})
    one = replace(case, script=following(script, case.requests))
    return keep_requests(one, set(numbers) - {gone})


def keep_nodes(request: Request, kept: Collection[int]) -> Request:
    """Only these nodes, the root always among them; orphans go to their nearest kept ancestor."""
    nodes = sorted({0, *kept})
    tree = request.tree
    new_index = {node: i for i, node in enumerate(nodes)}
    parents = [-1]
    for node in nodes[1:]:
        parent = tree.parents[node]
        while parent not in new_index:
            parent = tree.parents[parent]
        parents.append(new_index[parent])
    tokens = _apart([tree.tokens[node] for node in nodes], parents)
    order = sorted(range(len(nodes)), key=lambda i: request.row_of_node[nodes[i]])
    rows = [0] * len(nodes)
    for row, node in enumerate(order):
        rows[node] = row
    return replace(request, tree=CandidateTree(tokens, tuple(parents)), row_of_node=tuple(rows))


def without_subtree(request: Request, node: int) -> Request:
    tree = request.tree
    return keep_nodes(request, [i for i in range(len(tree)) if node not in tree.path(i)])


def hang_on_root(request: Request, *nodes: int) -> Request:
    """Each of the nodes becomes a branch of the root, with what is below it."""
    parents = [0 if i in nodes else parent for i, parent in enumerate(request.tree.parents)]
    tokens = _apart(list(request.tree.tokens), parents)
    return replace(request, tree=CandidateTree(tokens, tuple(parents)))


def _apart(tokens: list[int], parents: list[int]) -> tuple[int, ...]:
    """The tokens, with new ones where two siblings would hold the same."""
    unused = iter(range(len(tokens) * 2))
    taken = set(tokens)
    seen: set[tuple[int, int]] = set()
    for node, parent in enumerate(parents):
        if (parent, tokens[node]) in seen:
            tokens[node] = next(token for token in unused if token not in taken)
            taken.add(tokens[node])
        seen.add((parent, tokens[node]))
    return tuple(tokens)


def with_prefix(request: Request, length: int) -> Request:
    return replace(request, prefix_len=length, prefix_tokens=request.prefix_tokens[:length])


def without_prefix(request: Request) -> Request:
    return with_prefix(request, 0)


def with_pad_rows(request: Request, count: int) -> Request:
    return replace(request, pad_rows=count)


def rows_in_node_order(request: Request) -> Request:
    return replace(request, row_of_node=tuple(range(request.num_nodes)))


def small_tokens(request: Request) -> Request:
    """Token i on node i, and a prefix of no particular tokens."""
    tree = CandidateTree(tuple(range(request.num_nodes)), request.tree.parents)
    return replace(request, tree=tree, prefix_tokens=())


def same_prefix_tokens(request: Request) -> Request:
    """One token all along, where the tokens of the prefix are told: any length of it is alike."""
    return replace(request, prefix_tokens=(0,) * len(request.prefix_tokens))


def each_request(case: VerifyCase, edit: Callable[[Request], Request]) -> VerifyCase:
    """The same edit on every request."""
    return _fitted(case, requests=tuple(map(edit, case.requests)))


def with_shape(case: VerifyCase, **changes: Any) -> VerifyCase:
    shape = replace(case.shape, **changes)
    return _fitted(case, shape=shape)


def with_head_dims(case: VerifyCase, most: int) -> VerifyCase:
    shape = case.shape
    return with_shape(
        case, head_dim=min(most, shape.head_dim), v_head_dim=min(most, shape.v_head_dim)
    )


def with_window(case: VerifyCase, width: int) -> VerifyCase:
    return with_shape(case, visibility=Window(width=width))


def with_window_and_prefixes(case: VerifyCase, width: int) -> VerifyCase:
    """A narrower window, and every prefix shorter by as much: the window cuts where it did."""
    less = (case.shape.window or width) - width
    requests = tuple(with_prefix(r, max(0, r.prefix_len - less)) for r in case.requests)
    return with_window(_fitted(case, requests=requests), width)


def with_window_and_depth(case: VerifyCase, depth: int) -> VerifyCase:
    """Trees of this depth at most, and a window narrower by as much as the deepest one has lost."""
    trees = [request.tree for request in case.requests]
    less = max(max(tree.depth) for tree in trees) - depth
    requests = tuple(
        keep_nodes(request, [i for i, d in enumerate(request.tree.depth) if d <= depth])
        for request in case.requests
    )
    return with_window(_fitted(case, requests=requests), (case.shape.window or 0) - less)


def with_mask(case: VerifyCase, **changes: Any) -> VerifyCase:
    return replace(case, mask=replace(case.mask, **changes))


def with_layout(case: VerifyCase, **changes: Any) -> VerifyCase:
    return _fitted(case, layout=replace(_roomy(case.layout, changes), **changes))


def with_half_pages_and_prefixes(case: VerifyCase) -> VerifyCase:
    """Pages and prefixes of half the length: a tree lies across a page as it did."""
    requests = tuple(with_prefix(r, r.prefix_len // 2) for r in case.requests)
    return with_layout(_fitted(case, requests=requests), page_size=case.layout.page_size // 2)


def with_pages(case: VerifyCase, count: int) -> VerifyCase:
    """A cache of so many pages."""
    slots = count * case.layout.page_size
    pad = min(case.layout.page_table_pad, slots - 1)
    return replace(case, layout=replace(case.layout, num_slots=slots, page_table_pad=pad))


def simplest_layout(case: VerifyCase) -> VerifyCase:
    """Pages of one slot in logical order, nothing shared, nothing evicted, no slot to spare."""
    pages = pages_needed(case.requests, KVLayout(page_size=1, num_slots=1))
    if case.script:  # its requests grow
        pages = case.layout.num_slots
    return replace(case, layout=KVLayout(page_size=1, num_slots=pages))


def simplest_shape(case: VerifyCase) -> VerifyCase:
    """One head in float32, all keys visible, plain scores; as few lanes as there may be."""
    lanes = next(d for d in (8, 16, 32) if case.layout.num_slots <= 1 << d)
    return with_shape(
        case,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=lanes,
        v_head_dim=lanes,
        dtype="float32",
        rotary=case.shape.rotary if case.script else None,
        visibility=Full(),
        scale=None,
        softcap=None,
        sinks=False,
        alibi=False,
        kv_dtype=None,
    )


def simplest_rows(case: VerifyCase) -> VerifyCase:
    """Rows in node order, no padding, small tokens, and plain values everywhere."""
    case = each_request(each_request(case, rows_in_node_order), small_tokens)
    case = each_request(case, lambda request: with_pad_rows(request, 0))
    return replace(case, mask=MaskLayout(), seed=0, score_spread=1.0)


def _fitted(case: VerifyCase, **changes: Any) -> VerifyCase:
    """The case with these fields, its layout adapted to what the requests now allow and need."""
    requests = changes.get("requests", case.requests)
    shape = changes.get("shape", case.shape)
    layout = changes.get("layout", case.layout)
    page = layout.page_size
    shortest = min(request.prefix_len for request in requests)
    layout = replace(
        layout,
        shared_prefix=min(layout.shared_prefix, shortest) // page * page,
        evicted=layout.evicted and shape.window is not None,
    )
    slots = max(layout.num_slots, pages_needed(requests, layout) * page)
    script = following(changes.get("script", case.script), requests)
    layout = replace(layout, num_slots=slots)
    return replace(case, **{**changes, "layout": layout, "script": script})


def _roomy(layout: KVLayout, changes: dict[str, Any]) -> KVLayout:
    """The layout with its cache rounded up to a multiple of the page size it is about to have."""
    page = changes.get("page_size", layout.page_size)
    slots = -(-layout.num_slots // page) * page
    shared = layout.shared_prefix // page * page
    return replace(layout, page_size=page, num_slots=slots, shared_prefix=shared)
