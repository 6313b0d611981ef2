"""Candidate, of a selection: the best of the pool are chosen, each with its ancestors.

Scores are cumulative, so no child scores above its parent; it may score the same, where a probability
rounds to 1 or both underflow. Which of equal candidates are chosen is free, as long as none is chosen
without its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import DraftPool, Selected
from treeproof.generate.draft_pool import draft_pool
from treeproof.generate.drafter import LAWS, drafted_pool, reduced_vocabulary
from treeproof.generate.drafting import MOST
from treeproof.generate.embedding import pool_dims
from treeproof.oracles.select import best_candidates, selection

_MOST_TOGETHER, _MOST_ROWS = 4, 63


@dataclass(frozen=True)
class Pool:
    """A pool, and how many rows of each request are selected out of it.

    `requests[i]` is the request of the case behind line i. `free`: lines out of which any selection is
    right that names candidates of its own, because their scores have no order.
    """

    requests: tuple[int, ...]
    what: str
    pool: DraftPool
    num_rows: int
    free: frozenset[int] = frozenset()

    @cached_property
    def tokens(self) -> Tensor:
        """(B, pool) the target's token of each candidate."""
        hot = self.pool.hot_token_id
        return self.pool.tokens if hot is None else hot[self.pool.tokens]


def pools(case: VerifyCase, *, mapped: bool = False) -> list[Pool]:
    """What a selection is tried on.

    Of each request two alone: scores all different, whose best are its tree; and those of a drafter
    that is certain, half as many rows out of it. Of all requests together what such drafters leave
    whose probabilities are extreme. `mapped`: and once more in a vocabulary of the drafter's own.
    """
    whole, found = draft_pool(case), []
    topk, steps = whole.topk, whole.spec_steps
    for b, request in enumerate(case.requests):
        one = _lines(whole, slice(b, b + 1))
        found.append(Pool((b,), "scores all different", one, request.num_nodes))
        certain = replace(drafted_pool(case.seed, "certain", 1, topk, steps), tokens=one.tokens)
        found.append(Pool((b,), "equal scores", certain, 1 + request.num_nodes // 2))
    batch = tuple(range(min(len(case.requests), _MOST_TOGETHER)))
    topk, steps = min(topk, MOST), min(steps, MOST)
    for law in LAWS[1:]:
        pool = drafted_pool(case.seed, law, len(batch), topk, steps)
        rows = 1 + min((pool.scores.shape[1] + 1) // 2, _MOST_ROWS)
        found.append(Pool(batch, f"{law} probabilities", pool, rows))
    if mapped:
        hot = reduced_vocabulary(case.seed, pool)
        pool = replace(pool, hot_token_id=hot)
        found.append(Pool(batch, "a vocabulary of the drafter's own", pool, rows))
    return found


def without_order(case: VerifyCase) -> list[Pool]:
    """Two lines, of which the first has a score, or all, that is NaN."""
    topk, steps = (min(MOST, most) for most in pool_dims(case))
    pool = drafted_pool(case.seed, "saturated", 2, topk, steps)
    rows = 1 + (pool.scores.shape[1] + 1) // 2
    found = []
    for what, cells in (("one score is NaN", slice(1)), ("all scores are NaN", slice(None))):
        scores = pool.scores.clone()
        scores[0, cells] = torch.nan
        found.append(Pool((0, 0), what, replace(pool, scores=scores), rows, frozenset({0})))
    return found


def _lines(pool: DraftPool, lines: slice) -> DraftPool:
    return replace(
        pool, scores=pool.scores[lines], tokens=pool.tokens[lines], parents=pool.parents[lines]
    )


def judge_selected(given: Pool, got: Selected) -> list[Failure]:
    """Failures of what a selection returned for one pool, line by line."""
    return [
        failure
        for line in range(len(given.requests))
        for failure in _judge_line(_Line(given, line), got)
    ]


@dataclass(frozen=True)
class _Line:
    given: Pool
    at: int

    def cells(self, table: Tensor) -> list[Any]:
        found: list[Any] = table[self.at].tolist()
        return found


def _judge_line(line: _Line, got: Selected) -> list[Failure]:
    given, topk = line.given, line.given.pool.topk
    scores, chosen = line.cells(given.pool.scores), line.cells(got.selected_index)
    if sorted(chosen) != chosen or len(set(chosen)) < len(chosen):
        return [_failure(line, "unordered-selection", None, "indices ascending", chosen)]
    if any(not 0 <= s < len(scores) for s in chosen):
        return [_failure(line, "wrong-selection", None, f"indices below {len(scores)}", chosen)]
    # By the pool itself, so that a wrong list does not vouch for what it names.
    rows = selection(chosen, line.cells(given.tokens), line.cells(given.pool.parents), topk)
    failures = []
    if line.at not in given.free:
        failures = _not_the_best(line, scores, chosen)
        if failures:
            return failures
        for row in rows.orphans:
            above, own = rows.parent_pool_index[row - 1], chosen[row - 1]
            wanted = f"candidate {above}, parent of {own}, selected"
            failures.append(_failure(line, "orphaned-row", row, wanted, chosen))
    failures += _unlike(line, "wrong-token", line.cells(got.draft_token), rows.tokens)
    listed = line.cells(got.parent_list)
    cells = [s // topk for s in chosen]
    if any(cell and cell >= len(listed) for cell in cells):
        size = len(listed)
        return [*failures, _failure(line, "wrong-parent", None, f"over {max(cells)} cells", size)]
    held = [listed[cell] if cell else -1 for cell in cells]
    return failures + _unlike(line, "wrong-parent", held, rows.parent_pool_index)


def _not_the_best(line: _Line, scores: list[float], chosen: list[int]) -> list[Failure]:
    best = best_candidates(scores, line.given.num_rows - 1)
    wanted = sorted((scores[s] for s in best.pool_index), reverse=True)
    if sorted((scores[s] for s in chosen), reverse=True) == wanted:
        return []
    return [_failure(line, "wrong-selection", None, best.pool_index, chosen)]


def _unlike(line: _Line, kind: str, found: Sequence[int], true: Sequence[int]) -> list[Failure]:
    return [
        _failure(line, kind, row, b, a)
        for row, (a, b) in enumerate(zip(found, true, strict=True), start=1)
        if a != b
    ]


def _failure(line: _Line, kind: str, row: int | None, expected: object, actual: object) -> Failure:
    given = line.given
    where = "" if row is None else f"row {row}: "
    return Failure(
        identity="candidate", kind=kind, evidence="declared", stage="select",
        request=given.requests[line.at], row=row, expected=_short(expected), actual=_short(actual),
        message=f"{where}selecting {given.num_rows - 1} candidates, {given.what}: expected "
        f"{_short(expected)}, got {_short(actual)}",
    )  # fmt: skip


def _short(value: object) -> str:
    if not isinstance(value, list | tuple):
        return str(value)
    shown = ", ".join(map(str, value[:12]))
    return f"[{shown}, …]" if len(value) > 12 else f"[{shown}]"
