"""Candidate: the token of row i is its node's token; row 0 is last round's bonus."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Failure
from treeproof.properties.naming import row_name

Tokens = tuple[tuple[int | None, ...], ...]
Walk = tuple[int, Sequence[int], Sequence[int]]


def recover_tokens(tokens: Sequence[int], qo_indptr: Sequence[int]) -> Tokens:
    """Declared: token of each row, a list a request."""
    return tuple(tuple(tokens[lo:hi]) for lo, hi in itertools.pairwise(qo_indptr))


def recover_emitted(walks: Sequence[Walk], rows: Sequence[int]) -> Tokens:
    """Measured: token that acceptance emitted for each row it accepted.

    A walk is (request, accepted local rows, emitted tokens); the token emitted at step j belongs to
    the row accepted at step j + 1. Where walks disagree it is not determined.
    """
    found: list[list[set[int]]] = [[set() for _ in range(n)] for n in rows]
    for walk in walks:
        for row, tokens in _emitted(walk, len(found[walk[0]])).items():
            found[walk[0]][row] |= tokens
    return tuple(tuple(min(t) if len(t) == 1 else None for t in request) for request in found)


def _emitted(walk: Walk, rows: int) -> dict[int, set[int]]:
    """What one walk emitted for each of the rows that it accepted, of so many that there are."""
    _, accepted, tokens = walk
    found: dict[int, set[int]] = {}
    for row, token in zip(accepted[1:], tokens, strict=False):
        if 0 <= row < rows:
            found.setdefault(row, set()).add(token)
    return found


def judge_emitted(case: VerifyCase, walks: Sequence[Walk]) -> list[Failure]:
    """Measured: each walk by itself, so that a right one does not cover up for a wrong one."""
    failures: dict[tuple[int, int, int], Failure] = {}
    for walk in walks:
        b = walk[0]
        for row, tokens in sorted(_emitted(walk, case.requests[b].num_nodes).items()):
            if len(tokens) == 1:  # else it is not determined
                for failure in _judge(case, b, row, min(tokens), "measured", "accept"):
                    failures.setdefault((b, row, min(tokens)), failure)
    return list(failures.values())


def judge(case: VerifyCase, tokens: Tokens, evidence: Evidence, stage: str) -> list[Failure]:
    failures = []
    for b, request in enumerate(case.requests):
        for row in range(request.num_nodes):
            failures += _judge(case, b, row, tokens[b][row], evidence, stage)
    return failures


def _judge(
    case: VerifyCase, b: int, row: int, found: int | None, evidence: Evidence, stage: str
) -> list[Failure]:
    request = case.requests[b]
    true = request.tree.tokens[request.node_of_row[row]]
    if found is None or found == true:
        return []
    return [
        Failure(
            identity="candidate", kind="wrong-token", evidence=evidence, stage=stage,
            request=b, row=row, expected=str(true), actual=str(found),
            message=f"{row_name(request, row)} carries token {found}, expected {true}"
            if evidence == "declared"
            else f"accepting {row_name(request, row)} emits token {found}, expected {true}",
        )
    ]  # fmt: skip
