"""A case's trees in the order of their links, with tokens out of a small vocabulary or their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.tree import CandidateTree

_TOKENS = 547  # address word of the tokens


@dataclass(frozen=True)
class Plan:
    """A request's tree with siblings in the order of their links.

    `rows[i]` is the local row of node i of `tree`.
    """

    tree: CandidateTree
    rows: tuple[int, ...]


Siblings = tuple[tuple[tuple[int, ...], ...], ...]
"""Of each request and each of its rows: the children's rows, as links go through them."""


def vocabulary(case: VerifyCase) -> int:
    """Two tokens more than the most children of a row."""
    return 2 + max(1, *(len(r.tree.children(v)) for r in case.requests for v in range(len(r.tree))))


def plans_of(case: VerifyCase, siblings: Siblings | None = None) -> tuple[Plan, ...]:
    """Of each request; `siblings` None: by ascending rows."""
    size = vocabulary(case)
    plans = tuple(_plan(request, size, case.seed, b) for b, request in enumerate(case.requests))
    return plans if siblings is None else in_order(plans, siblings)


def in_order(plans: tuple[Plan, ...], siblings: Siblings) -> tuple[Plan, ...]:
    """The same trees with the same tokens, siblings in this order."""
    return tuple(map(_in_order, plans, siblings))


def _in_order(plan: Plan, below: tuple[tuple[int, ...], ...]) -> Plan:
    token = dict(zip(plan.rows, plan.tree.tokens, strict=True))
    rows, parents = [0], [-1]
    for node, row in enumerate(rows):
        rows += below[row]
        parents += [node] * len(below[row])
    return Plan(CandidateTree(tuple(token[row] for row in rows), tuple(parents)), tuple(rows))


def ascending(case: VerifyCase) -> Siblings:
    """Children by ascending rows."""
    found = []
    for request in case.requests:
        below: list[list[int]] = [[] for _ in request.parent_rows]
        for row, parent in enumerate(request.parent_rows):
            if parent >= 0:
                below[parent].append(row)
        found.append(tuple(map(tuple, below)))
    return tuple(found)


def flat_tokens(case: VerifyCase, plans: tuple[Plan, ...]) -> npt.NDArray[np.int64]:
    """(T,) what `draft_token` is with these tokens; 0 on padding."""
    tokens = np.zeros(case.num_rows, np.int64)
    for first, plan in zip(case.qo_indptr, plans, strict=False):
        tokens[[first + row for row in plan.rows]] = plan.tree.tokens
    return tokens


def by_links(request: Request) -> Plan:
    """A request's tree with the tokens that it has."""
    rows, parents, _ = _linked(request)
    tokens = [request.tree.tokens[request.node_of_row[row]] for row in rows]
    return Plan(CandidateTree(tuple(tokens), tuple(parents)), tuple(rows))


def _plan(request: Request, size: int, seed: int, b: int) -> Plan:
    rows, parents, ranks = _linked(request)
    tokens = [
        (address_hash(seed, _TOKENS, b, parent) + rank) % size if parent >= 0 else 0
        for parent, rank in zip(parents, ranks, strict=True)
    ]
    return Plan(CandidateTree(tuple(tokens), tuple(parents)), tuple(rows))


def _linked(request: Request) -> tuple[list[int], list[int], list[int]]:
    """Level by level: each node's row, its parent's number in this order, its rank among siblings."""
    rows, parents, ranks = [0], [-1], [0]
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(request.parent_rows):
        below.setdefault(parent, []).append(row)
    for node, row in enumerate(rows):
        for rank, child in enumerate(below.get(row, ())):
            rows.append(child)
            parents.append(node)
            ranks.append(rank)
    return rows, parents, ranks
