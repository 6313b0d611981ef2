"""Cases that stand in a known relation to another: same logical tokens, other rows, slots or batch.

`Related` says which row of the new case must give what which row of the old one gives. Functions
yield one or more ways to draw a relation, the first that a backend can take being meant, and nothing
where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from treeproof.contract.case import Order, Request, VerifyCase, pages_needed
from treeproof.contract.counter import address_hash, permutation
from treeproof.contract.tree import CandidateTree

if TYPE_CHECKING:
    from treeproof.generate.data import LogicalData

_ROWS, _ALONE = 501, 502  # address words

_OTHER_ORDER: dict[Order, Order] = {
    "contiguous": "reversed",
    "reversed": "shuffled",
    "shuffled": "interleaved",
    "interleaved": "contiguous",
}


@dataclass(frozen=True)
class Origin:
    """Where a request of a related case has its logical tokens from.

    `request` of the old case; `prefix`: nodes of it that follow its prefix as prefix keys; `nodes`:
    old node of each new one, or -1 for a node of no relation.
    """

    request: int
    prefix: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Related:
    case: VerifyCase
    origins: tuple[Origin, ...]

    def rows(self, old: VerifyCase) -> list[tuple[int, int]]:
        """(flat row of the old case, flat row of this one) that must give the same."""
        pairs = []
        for r, (request, origin) in enumerate(zip(self.case.requests, self.origins, strict=True)):
            before = old.requests[origin.request]
            start, old_start = self.case.qo_indptr[r], old.qo_indptr[origin.request]
            pairs += [
                (old_start + before.row_of_node[node], start + request.row_of_node[new])
                for new, node in enumerate(origin.nodes)
                if node >= 0
            ]
        return pairs

    def data(self, old: LogicalData) -> LogicalData:
        """The same numbers for the same logical tokens; nodes of no relation hold negated ones."""
        import torch

        q, k_tree, v_tree, k_prefix, v_prefix = [], [], [], [], []
        for origin in self.origins:
            b = origin.request
            nodes = torch.tensor(origin.nodes, device=old.q[b].device)
            place, sign = nodes.clamp(min=0), torch.where(nodes < 0, -1, 1)[:, None, None]
            q.append(old.q[b][place] * sign)
            k_tree.append(old.k_tree[b][place] * sign)
            v_tree.append(old.v_tree[b][place] * sign)
            more = torch.tensor(origin.prefix, dtype=torch.int64, device=nodes.device)
            k_prefix.append(torch.cat((old.k_prefix[b], old.k_tree[b][more])))
            v_prefix.append(torch.cat((old.v_prefix[b], old.v_tree[b][more])))
        return replace(
            old, q=tuple(q), k_prefix=tuple(k_prefix), v_prefix=tuple(v_prefix),
            k_tree=tuple(k_tree), v_tree=tuple(v_tree),
        )  # fmt: skip


def _same(case: VerifyCase) -> tuple[Origin, ...]:
    return tuple(
        Origin(b, (), tuple(range(request.num_nodes))) for b, request in enumerate(case.requests)
    )


def with_requests(case: VerifyCase, requests: Sequence[Request], *, shared: bool) -> VerifyCase:
    """The case with these requests and a cache that holds them; `shared` keeps aliased pages."""
    layout = case.layout
    if not shared:
        layout = msgspec.structs.replace(layout, shared_prefix=0)
    slots = pages_needed(tuple(requests), layout) * layout.page_size
    layout = msgspec.structs.replace(layout, num_slots=max(slots, layout.num_slots))
    return msgspec.structs.replace(case, requests=tuple(requests), layout=layout)


def _related(
    case: VerifyCase, requests: Sequence[Request], origins: tuple[Origin, ...], *, shared: bool
) -> Iterator[Related]:
    """One related case, or none where the contract has none: a mask word is full, say."""
    try:
        made = with_requests(case, requests, shared=shared)
    except ValueError:
        return
    if made != case:
        yield Related(made, origins)


def other_rows(case: VerifyCase) -> Iterator[Related]:
    """Another order of rows: any, parents first, breadth first."""
    for orders in zip(*(_row_orders(case, b) for b in range(len(case.requests))), strict=True):
        requests = [
            msgspec.structs.replace(request, row_of_node=order)
            for request, order in zip(case.requests, orders, strict=True)
        ]
        yield from _related(case, requests, _same(case), shared=True)


def _row_orders(case: VerifyCase, b: int) -> Iterator[tuple[int, ...]]:
    tree = case.requests[b].tree
    drawn = permutation(len(tree) - 1, case.seed, _ROWS, b)
    yield (0, *(1 + i for i in drawn))
    rank = [0, *drawn]
    waiting, rows = [0], [0] * len(tree)
    for row in range(len(tree)):
        node = min(waiting, key=rank.__getitem__)
        waiting.remove(node)
        waiting += tree.children(node)
        rows[node] = row
    yield tuple(rows)
    by_level = sorted(range(len(tree)), key=lambda node: (tree.depth[node], rank[node]))
    yield _rows_of(by_level)


def _rows_of(nodes: Sequence[int]) -> tuple[int, ...]:
    """`row_of_node` from the nodes in row order."""
    rows = [0] * len(nodes)
    for row, node in enumerate(nodes):
        rows[node] = row
    return tuple(rows)


def other_layout(case: VerifyCase) -> Iterator[Related]:
    """The same requests in other pages."""
    layout = msgspec.structs.replace(case.layout, order=_OTHER_ORDER[case.layout.order])
    yield Related(msgspec.structs.replace(case, layout=layout), _same(case))


def other_batch_order(case: VerifyCase) -> Iterator[Related]:
    """The requests from last to first."""
    if len(case.requests) > 1:
        yield from _related(case, case.requests[::-1], _same(case)[::-1], shared=True)


def smaller_batch(case: VerifyCase) -> Iterator[Related]:
    """The last request alone."""
    if len(case.requests) > 1:
        yield from _related(case, case.requests[-1:], _same(case)[-1:], shared=False)


def one_more_branch(case: VerifyCase) -> Iterator[Related]:
    """Two more nodes below the root of each tree: in the last rows, or in breadth-first ones."""
    grown = [_with_branch(request.tree) for request in case.requests]
    origins = tuple(
        Origin(b, (), (*range(request.num_nodes), -1, -1))
        for b, request in enumerate(case.requests)
    )
    for breadth_first in (False, True):
        requests = []
        for request, tree in zip(case.requests, grown, strict=True):
            n = request.num_nodes
            order = (*request.row_of_node, n, n + 1)
            if breadth_first:
                depth, rank = tree.depth, order
                order = _rows_of(sorted(range(n + 2), key=lambda v: (depth[v], rank[v])))
            requests.append(msgspec.structs.replace(request, tree=tree, row_of_node=order))
        yield from _related(case, requests, origins, shared=True)


def _with_branch(tree: CandidateTree) -> CandidateTree:
    taken = set(tree.tokens)
    unused = [token for token in range(len(tree) + 2) if token not in taken]
    return CandidateTree((*tree.tokens, *unused[:2]), (*tree.parents, 0, len(tree)))


def rows_alone(case: VerifyCase) -> Iterator[Related]:
    """Up to four nodes as requests of one row each, their ancestors moved into the prefix."""
    places = [(b, node) for b, r in enumerate(case.requests) for node in range(r.num_nodes)]
    some = [places[i] for i in permutation(len(places), case.seed, _ALONE)[:4]]
    requests, origins = [], []
    for b, node in some:
        request = case.requests[b]
        above = request.tree.path(node)[:-1]
        tokens = request.prefix_tokens
        if tokens or not request.prefix_len:
            tokens = (*tokens, *(request.tree.tokens[a] for a in above))
        requests.append(
            Request(
                tree=CandidateTree((request.tree.tokens[node],), (-1,)),
                row_of_node=(0,),
                prefix_len=request.prefix_len + len(above),
                prefix_tokens=tokens,
            )
        )
        origins.append(Origin(b, above, (node,)))
    yield from _related(case, requests, tuple(origins), shared=False)


def more_padding(case: VerifyCase) -> Iterator[Related]:
    """Three more padded rows in each request."""
    requests = [msgspec.structs.replace(r, pad_rows=r.pad_rows + 3) for r in case.requests]
    yield from _related(case, requests, _same(case), shared=True)


def one_path(case: VerifyCase) -> Iterator[Related]:
    """Each tree's deepest path alone, as the chain that it is."""
    requests, origins = [], []
    for b, request in enumerate(case.requests):
        tree = request.tree
        path = tree.path(max(tree.leaves, key=tree.depth.__getitem__))
        chain = CandidateTree(
            tuple(tree.tokens[node] for node in path), tuple(range(-1, len(path) - 1))
        )
        requests.append(
            msgspec.structs.replace(request, tree=chain, row_of_node=tuple(range(len(path))))
        )
        origins.append(Origin(b, (), path))
    if any(len(o.nodes) < r.num_nodes for o, r in zip(origins, case.requests, strict=True)):
        yield from _related(case, requests, tuple(origins), shared=True)


def larger(case: VerifyCase) -> Iterator[VerifyCase]:
    """A batch that leaves more behind: longer prefixes, other trees, more rows, one request more."""
    page = case.layout.page_size
    longer = [
        msgspec.structs.replace(r, prefix_len=r.prefix_len + page + 3, prefix_tokens=())
        for r in case.requests
    ]
    grown = [hung_over(request, 5) for request in longer]
    turned = [hung_over(request, 0) for request in longer]
    for requests in (
        [*grown, grown[0]],
        [*turned, turned[0]],
        turned,
        [*longer, longer[0]],
        longer,
    ):
        yield from (made.case for made in _related(case, requests, (), shared=True))


def twin(case: VerifyCase) -> Iterator[VerifyCase]:
    """The same sizes with other trees: what is kept by size alone is wrong now."""
    requests = [hung_over(request, 0) for request in case.requests]
    yield from (made.case for made in _related(case, requests, (), shared=True))


def hung_over(request: Request, more: int) -> Request:
    """The request with a chain for its tree, or a comb where it was one, `more` nodes longer."""
    count = request.num_nodes + more
    if request.tree.parents == chain_of(request.num_nodes):
        return hung_on(request, (-1, *(max(0, i - 2 + i % 2) for i in range(1, count))))
    return hung_on(request, chain_of(count))


def chain_of(count: int) -> tuple[int, ...]:
    """Parents of a chain."""
    return tuple(range(-1, count - 1))


def hung_on(request: Request, parents: tuple[int, ...]) -> Request:
    """The request with another tree, its rows in the order of its nodes."""
    count = len(parents)
    tokens = tuple(3 + (address_hash(7, i) % 65_536) * (count + 1) + i for i in range(count))
    return msgspec.structs.replace(
        request, tree=CandidateTree(tokens, parents), row_of_node=tuple(range(count))
    )
