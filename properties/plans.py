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


def vocabulary(case: VerifyCase) -> int:
    """Two tokens more than the most children of a row."""
    return 2 + max(1, *(len(r.tree.children(v)) for r in case.requests for v in range(len(r.tree))))


def plans_of(case: VerifyCase) -> tuple[Plan, ...]:
    """Of each request. Links go by ascending rows, so siblings do here."""
    size = vocabulary(case)
    return tuple(_plan(request, size, case.seed, b) for b, request in enumerate(case.requests))


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
