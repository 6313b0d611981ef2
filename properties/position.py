"""Position: positions[i] = P + depth; siblings share one; padding is 0."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.properties.naming import row_name
from treeproof.properties.probes.clock import PERIOD


def recover_depths(
    positions: Sequence[int], qo_indptr: Sequence[int], prefixes: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Declared: depth of each row, padding included, a list a request."""
    return tuple(
        tuple(p - prefixes[b] for p in positions[lo:hi])
        for b, (lo, hi) in enumerate(itertools.pairwise(qo_indptr))
    )


def judge_declared(
    case: VerifyCase, depths: tuple[tuple[int, ...], ...], stage: str = "build"
) -> list[Failure]:
    failures = []
    for b, request in enumerate(case.requests):
        for row in range(request.num_rows):
            if row >= request.num_nodes:
                if depths[b][row] + request.prefix_len != 0:
                    failures.append(_padding(b, row, depths[b][row] + request.prefix_len, stage))
                continue
            true = request.tree.depth[request.node_of_row[row]]
            if depths[b][row] != true:
                p = request.prefix_len
                failures.append(
                    Failure(
                        identity="position", kind="wrong-depth", evidence="declared", stage=stage,
                        request=b, row=row, expected=str(p + true), actual=str(p + depths[b][row]),
                        message=f"{row_name(request, row)} is given position {p + depths[b][row]}, "
                        f"expected {p + true} = prefix {p} + depth {true}",
                    )
                )  # fmt: skip
    return failures


def _padding(b: int, row: int, actual: int, stage: str) -> Failure:
    return Failure(
        identity="position", kind="padding-position", evidence="declared", stage=stage,
        request=b, row=row, expected="0", actual=str(actual),
        message=f"padded row {row} is given position {actual}, expected 0",
    )  # fmt: skip


def recover_clock(
    turns: Sequence[int | None], qo_indptr: Sequence[int], owns_reference: Sequence[bool]
) -> tuple[tuple[int | None, ...], ...]:
    """Measured: depth of each row modulo PERIOD from its position against the reference key.

    `owns_reference[b]`: the reference is the last prefix key, one position before the root; else it
    is the root itself.
    """
    return tuple(
        tuple(
            None if turn is None else (turn - (1 if owns_reference[b] else 0)) % PERIOD
            for turn in turns[lo:hi]
        )
        for b, (lo, hi) in enumerate(itertools.pairwise(qo_indptr))
    )


def judge_measured(
    case: VerifyCase, depths: tuple[tuple[int | None, ...], ...], stage: str = "attend"
) -> list[Failure]:
    failures = []
    for b, request in enumerate(case.requests):
        for row, node in enumerate(request.node_of_row):
            true, found = request.tree.depth[node] % PERIOD, depths[b][row]
            if found is not None and found != true:
                p = request.prefix_len
                failures.append(
                    Failure(
                        identity="position", kind="wrong-rotation", evidence="measured",
                        stage=stage, request=b, row=row,
                        expected=str(p + true), actual=str(p + found),
                        message=f"the query of {row_name(request, row)} is rotated as at position "
                        f"{p + found}, expected {p + true} (modulo {PERIOD})",
                    )
                )  # fmt: skip
    return failures
