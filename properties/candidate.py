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
    for request, accepted, tokens in walks:
        for row, token in zip(accepted[1:], tokens, strict=False):
            if 0 <= row < len(found[request]):
                found[request][row].add(token)
    return tuple(tuple(min(t) if len(t) == 1 else None for t in request) for request in found)


def judge_emitted(case: VerifyCase, walks: Sequence[Walk]) -> list[Failure]:
    """Measured: each walk by itself, so that a right one does not cover up for a wrong one."""
    rows = [request.num_nodes for request in case.requests]
    failures: dict[tuple[int | None, int | None, str], Failure] = {}
    for walk in walks:
        for failure in judge(case, recover_emitted([walk], rows), "measured", "accept"):
            failures.setdefault((failure.request, failure.row, failure.actual), failure)
    return list(failures.values())


def judge(case: VerifyCase, tokens: Tokens, evidence: Evidence, stage: str) -> list[Failure]:
    failures = []
    for b, request in enumerate(case.requests):
        for row, node in enumerate(request.node_of_row):
            true, found = request.tree.tokens[node], tokens[b][row]
            if found is None or found == true:
                continue
            failures.append(
                Failure(
                    identity="candidate", kind="wrong-token", evidence=evidence, stage=stage,
                    request=b, row=row, expected=str(true), actual=str(found),
                    message=f"{row_name(request, row)} carries token {found}, expected {true}"
                    if evidence == "declared"
                    else f"accepting {row_name(request, row)} emits token {found}, expected {true}",
                )
            )  # fmt: skip
    return failures
