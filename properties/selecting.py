"""Candidate, of a selection: the best of the pool are chosen, each with its ancestors.

Scores are cumulative, so no child scores above its parent; it may score the same, where a probability
rounds to 1 or both underflow. Which of equal candidates are chosen is free, as long as none is chosen
without its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import DraftPool, Selected
from treeproof.generate.draft_pool import draft_pool
from treeproof.oracles.select import best_candidates, selection


@dataclass(frozen=True)
class Pool:
    """The pool of one request, and how many rows are selected out of it."""

    request: int
    what: str
    pool: DraftPool
    num_rows: int


def pools(case: VerifyCase) -> list[Pool]:
    """Of each request two: scores all different, whose best are its tree; and those of a draft model
    that is certain, half as many rows out of it."""
    whole, found = draft_pool(case), []
    for b, request in enumerate(case.requests):
        one = replace(
            whole,
            scores=whole.scores[b : b + 1],
            tokens=whole.tokens[b : b + 1],
            parents=whole.parents[b : b + 1],
        )
        found.append(Pool(b, "scores all different", one, request.num_nodes))
        found.append(Pool(b, "equal scores", _certain(one), 1 + request.num_nodes // 2))
    return found


def _certain(pool: DraftPool) -> DraftPool:
    """The first step takes k tokens for equally likely; after it each beam's first child has
    probability 1, as a softmax in float32 gives it, and scores what its parent does."""
    k, sizes = pool.topk, range(pool.topk, pool.scores.shape[1], pool.topk**2)
    scores = torch.zeros_like(pool.scores)
    scores[:, :k] = 1 / k
    beams = [torch.arange(-1, k)]
    for start in sizes:
        firsts = start + k * torch.arange(k)
        scores[:, firsts] = 1 / k
        beams.append(firsts)
    parents = torch.cat(beams)
    return replace(pool, scores=scores, parents=parents.expand_as(pool.parents).clone())


def judge_selected(given: Pool, got: Selected) -> list[Failure]:
    """Failures of what a selection returned for one pool; tensors (1, ...)."""
    scores, chosen = given.pool.scores[0].tolist(), got.selected_index[0].tolist()
    best = best_candidates(scores, given.num_rows - 1)
    if sorted(chosen) != chosen or len(set(chosen)) < len(chosen):
        return [_failure(given, "unordered-selection", None, "indices ascending", chosen)]
    if any(not 0 <= s < len(scores) for s in chosen):
        return [_failure(given, "wrong-selection", None, f"indices below {len(scores)}", chosen)]
    wanted = sorted((scores[s] for s in best.pool_index), reverse=True)
    if sorted((scores[s] for s in chosen), reverse=True) != wanted:
        return [_failure(given, "wrong-selection", None, best.pool_index, chosen)]
    # By the pool itself, so that a wrong list does not vouch for what it names.
    parents, topk = given.pool.parents[0].tolist(), given.pool.topk
    rows = selection(chosen, given.pool.tokens[0].tolist(), parents, topk)
    failures = []
    for row in rows.orphans:
        above, own = rows.parent_pool_index[row - 1], chosen[row - 1]
        failures.append(
            _failure(
                given, "orphaned-row", row, f"candidate {above}, parent of {own}, selected", chosen
            )
        )
    failures += _unlike(given, "wrong-token", got.draft_token[0].tolist(), rows.tokens)
    listed = got.parent_list[0].tolist()
    cells = [s // topk for s in chosen]
    if any(cell and cell >= len(listed) for cell in cells):
        size = len(listed)
        return [*failures, _failure(given, "wrong-parent", None, f"over {max(cells)} cells", size)]
    held = [listed[cell] if cell else -1 for cell in cells]
    return failures + _unlike(given, "wrong-parent", held, rows.parent_pool_index)


def _unlike(given: Pool, kind: str, found: Sequence[int], true: Sequence[int]) -> list[Failure]:
    return [
        _failure(given, kind, row, b, a)
        for row, (a, b) in enumerate(zip(found, true, strict=True), start=1)
        if a != b
    ]


def _failure(given: Pool, kind: str, row: int | None, expected: object, actual: object) -> Failure:
    where = "" if row is None else f"row {row}: "
    return Failure(
        identity="candidate", kind=kind, evidence="declared", stage="select",
        request=given.request, row=row, expected=_short(expected), actual=_short(actual),
        message=f"{where}selecting {given.num_rows - 1} candidates, {given.what}: expected "
        f"{_short(expected)}, got {_short(actual)}",
    )  # fmt: skip


def _short(value: object) -> str:
    if not isinstance(value, list | tuple):
        return str(value)
    shown = ", ".join(map(str, value[:12]))
    return f"[{shown}, …]" if len(value) > 12 else f"[{shown}]"
