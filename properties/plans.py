"""A case's trees with tokens out of a small vocabulary: what laws and logits have a line of."""

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
    """A request's tree with siblings in the order of their links, and tokens of a small vocabulary.

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


def _plan(request: Request, size: int, seed: int, b: int) -> Plan:
    rows, parents, tokens = [0], [-1], [0]
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(request.parent_rows):
        below.setdefault(parent, []).append(row)
    for node, row in enumerate(rows):
        shift = address_hash(seed, _TOKENS, b, node)
        for rank, child in enumerate(below.get(row, ())):
            rows.append(child)
            parents.append(node)
            tokens.append((shift + rank) % size)
    return Plan(CandidateTree(tuple(tokens), tuple(parents)), tuple(rows))
