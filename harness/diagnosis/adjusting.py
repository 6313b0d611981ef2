"""What row processing gives where a row's counts, grammar state or parameters are as stated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treeproof.contract.case import VerifyCase
from treeproof.properties.processing import Processed, processings

Over = Literal["path", "rows before", "path without its end", "no draft", "own draft", "every row"]
"""The drafts that a row is processed by."""

Rows = tuple[tuple[int, int, tuple[float, ...]], ...]
"""Request, row and processed logits of every row whose path is allowed."""


@dataclass(frozen=True)
class Adjusting:
    """Right as it stands. `advanced`, `counted`: over which drafts grammar and penalties go.
    `unmasked`: rows that the grammar does not mask. `root_twice`: below it. `skipped`: a parameter that
    draft rows do not get."""

    advanced: Over = "path"
    counted: Over = "path"
    unmasked: Literal["", "all", "the last", "drafts"] = ""
    root_twice: bool = False
    skipped: Literal["", "min_p", "temperature", "bias", "repetition"] = ""


RIGHT = Adjusting()


def adjusted(case: VerifyCase, how: Adjusting) -> Rows:
    given = processings(case)
    return tuple((b, row, _row(given, b, row, how)) for b, row, _ in given.expected)


def _row(given: Processed, b: int, row: int, how: Adjusting) -> tuple[float, ...]:
    plan, asked = given.plans[b], given.asked[b]
    counts, state = list(asked.counts), asked.state
    for token in _drafts(given, b, row, how.counted):
        counts[token] += 1
    if how.root_twice and row:
        counts[plan.tree.tokens[0]] += 1
    for token in _drafts(given, b, row, how.advanced):
        state = asked.grammar[state][token] if state >= 0 else -1
    skipped = how.skipped if row else ""
    last = row + 1 == len(plan.rows)
    open_rows = {"": False, "all": True, "the last": last, "drafts": row > 0}
    free = state < 0 or open_rows[how.unmasked]
    repetition = 1.0 if skipped == "repetition" else asked.repetition
    temperature = 1.0 if skipped == "temperature" else asked.temperature
    found = []
    for token, logit in enumerate(given.logits[given.case.qo_indptr[b] + row].tolist()):
        if counts[token]:
            logit -= asked.frequency * counts[token] + asked.presence
            logit = logit / repetition if logit > 0 else logit * repetition
        logit += 0.0 if skipped == "bias" else asked.bias[token]
        allowed = free or asked.grammar[state][token] >= 0
        found.append(logit / temperature if allowed else -math.inf)
    if asked.min_p and skipped != "min_p":
        least = max(found) + math.log(asked.min_p)
        found = [logit if logit >= least else -math.inf for logit in found]
    return tuple(found)


def _drafts(given: Processed, b: int, row: int, over: Over) -> Sequence[int]:
    plan = given.plans[b]
    node = plan.rows.index(row)
    path = [plan.tree.tokens[on] for on in plan.tree.path(node)[1:]]
    by_row = [plan.tree.tokens[plan.rows.index(r)] for r in range(1, len(plan.rows))]
    drafts: dict[Over, Sequence[int]] = {
        "path": path,
        "rows before": by_row[:row],
        "path without its end": path[:-1],
        "no draft": (),
        "own draft": path[-1:],
        "every row": by_row,
    }
    return drafts[over]
