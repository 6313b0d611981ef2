"""Smaller cases that no single removal leads to: something goes, and something else changes with it.

A failure that hangs on an order, on a drawn number or on the sum of two things keeps more than it
needs where only removals are tried. Here whatever goes is more than whatever comes, so that no
exchange can be undone by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.tree import MAX_TOKEN, CandidateTree
from treeproof.engine import simplify
from treeproof.engine.removals import Edit

SEEDS = (1, 2, 3, 4)
"""What a drawn number decides by a bit, one of a few seeds decides otherwise."""
MOST_TOKENS = 64
"""Of nodes, keys and padded rows: larger cases cost more than a smaller one is worth."""


def exchanges(case: VerifyCase) -> Iterator[Edit]:
    """Edits to cases of fewer nodes, keys and padded rows than this one, the plainest first."""
    if case.script or _tokens(case.requests) > MOST_TOKENS:
        return
    smaller = list(_lacking_one(case))
    for b, request in enumerate(case.requests):
        for traded in _trades(request):
            yield partial(simplify.with_request, index=b, request=traded)
    for change in _changes(case):
        for less in smaller:
            yield _both(less, change)


def _tokens(requests: tuple[Request, ...]) -> int:
    return sum(r.num_nodes + r.prefix_len + r.pad_rows for r in requests)


def _both(first: Edit, then: Edit) -> Edit:
    return lambda case: then(first(case))


def _lacking_one(case: VerifyCase) -> Iterator[Edit]:
    """Without a request, a node, a key or a padded row."""
    count = len(case.requests)
    for b in range(count) if count > 1 else ():
        yield partial(simplify.keep_requests, kept=set(range(count)) - {b})
    plain = all(r == simplify.small_tokens(r) for r in case.requests)
    for b, request in enumerate(case.requests):
        seen: set[Request] = set()
        for less in _requests_lacking_one(request):
            edited = simplify.small_tokens(less) if plain else less
            if edited not in seen:  # siblings are alike
                seen.add(edited)
                yield partial(simplify.with_request, index=b, request=edited)


def _requests_lacking_one(request: Request) -> Iterator[Request]:
    nodes = range(request.num_nodes)
    for node in reversed(nodes[1:]):
        yield simplify.keep_nodes(request, [kept for kept in nodes if kept != node])
    if request.prefix_len:
        yield simplify.with_prefix(request, request.prefix_len - 1)
    if request.pad_rows:
        yield simplify.with_pad_rows(request, request.pad_rows - 1)


def _trades(request: Request) -> Iterator[Request]:
    """Two of the nodes, keys and padded rows against one of another kind."""
    counts = request.num_nodes, request.prefix_len, request.pad_rows
    for come in range(3):
        for one, other in ((1, 1), (0, 2), (2, 0)):
            traded = list(counts)
            gone = [kind for kind in range(3) if kind != come]
            traded[come] += 1
            traded[gone[0]] -= one
            traded[gone[1]] -= other
            if traded[0] >= 1 and min(traded) >= 0:
                yield _of_counts(request, *traded)


def _of_counts(request: Request, nodes: int, keys: int, padding: int) -> Request:
    """Its first nodes, with another child of the root where there are not enough."""
    if nodes <= request.num_nodes:
        request = simplify.keep_nodes(request, range(nodes))
    else:
        request = _with_a_child(request)
    return replace(request, prefix_len=keys, prefix_tokens=(), pad_rows=padding)


def _with_a_child(request: Request) -> Request:
    tree = request.tree
    unused = next(token for token in range(len(tree) + 1) if token not in tree.tokens)
    grown = CandidateTree((*tree.tokens, unused), (*tree.parents, 0))
    return replace(request, tree=grown, row_of_node=(*request.row_of_node, len(tree)))


def _changes(case: VerifyCase) -> Iterator[Edit]:
    """What is as large as before and may show what less of the case does not."""
    yield partial(simplify.each_request, edit=_rows_backwards)
    yield _pages_backwards
    if case.shape.window is not None and case.shape.window > 1:
        narrow = partial(simplify.with_window, width=case.shape.window - 1)
        yield narrow
        yield _both(narrow, _pages_backwards)
    yield partial(simplify.each_request, edit=_as_a_chain)
    yield _requests_backwards
    for seed in SEEDS:
        yield _seeded(seed)
        yield _both(_requests_backwards, _seeded(seed))
    if any(r != simplify.small_tokens(r) for r in case.requests):  # the tokens matter
        for seed in (case.seed, *SEEDS):
            yield _both(partial(simplify.each_request, edit=_large_tokens), _seeded(seed))


def _rows_backwards(request: Request) -> Request:
    """Children before their parents: row 0 is the root's, and the last is the first node's."""
    return replace(request, row_of_node=(0, *range(request.num_nodes - 1, 0, -1)))


def _pages_backwards(case: VerifyCase) -> VerifyCase:
    return simplify.with_layout(case, order="reversed")


def _requests_backwards(case: VerifyCase) -> VerifyCase:
    return replace(case, requests=case.requests[::-1])


def _as_a_chain(request: Request) -> Request:
    chain = CandidateTree(request.tree.tokens, tuple(range(-1, request.num_nodes - 1)))
    return replace(request, tree=chain)


def _seeded(seed: int) -> Callable[[VerifyCase], VerifyCase]:
    return lambda case: replace(case, seed=seed)


def _large_tokens(request: Request) -> Request:
    """Tokens that a narrower type cannot hold."""
    tokens = tuple(range(MAX_TOKEN, MAX_TOKEN - request.num_nodes, -1))
    return replace(request, tree=CandidateTree(tokens, request.tree.parents), prefix_tokens=())
