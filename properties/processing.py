"""Output, of processed logits: penalties, biases, grammar and min-p follow the path, not the rows.

All numbers are short binary fractions, so that float32 has every result exactly, in whatever order a
kernel works them out; and no logit is near the edge of a min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash, hash_words
from treeproof.contract.failure import Failure
from treeproof.oracles.processed import Asked, processed
from treeproof.properties.bound import U_32
from treeproof.properties.naming import row_name
from treeproof.properties.plans import Plan, flat_tokens, plans_of, vocabulary

_LOGITS, _ASKED, _GRAMMAR = 557, 563, 569  # address words of what is drawn
_STATES = 8


@dataclass(frozen=True)
class Processed:
    """One launch of `process`. `tokens` (T,) replaces `draft_token`; `logits` (T, V) float32. `exact`: in
    float32 nothing is rounded on the way."""

    case: VerifyCase
    plans: tuple[Plan, ...]
    asked: tuple[Asked, ...]
    tokens: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    exact: bool = True

    @cached_property
    def expected(self) -> tuple[tuple[int, int, tuple[float, ...]], ...]:
        """Request, local row and its processed logits, for every row whose path is allowed."""
        found = []
        for b, (plan, asked) in enumerate(zip(self.plans, self.asked, strict=True)):
            for node, row in enumerate(plan.rows):
                drafts = [plan.tree.tokens[on] for on in plan.tree.path(node)[1:]]
                logits = self.logits[self.case.qo_indptr[b] + row].tolist()
                wanted = processed(logits, drafts, asked)
                if wanted is not None:
                    found.append((b, row, wanted))
        return tuple(found)


def processings(case: VerifyCase) -> Processed:
    """Everything is asked of every request at once: what has no effect on a row cannot hide there."""
    plans, size = plans_of(case), vocabulary(case)
    asked = tuple(_asked(case.seed, b, plan, size) for b, plan in enumerate(plans))
    cells = np.arange(case.num_rows * size, dtype=np.uint64)
    drawn = hash_words(address_hash(case.seed, _LOGITS), cells) % np.uint64(65)
    logits = ((drawn.astype(np.float32) - 32) / np.float32(8)).reshape(case.num_rows, size)
    for b, plan in enumerate(plans):
        for (
            row
        ) in plan.rows:  # the two largest are equal: which of them wins is for the walk to say
            line = logits[case.qo_indptr[b] + row]
            line[address_hash(case.seed, _LOGITS, b, row) % size] = line.max()
    return Processed(case, plans, asked, flat_tokens(case, plans), logits)


def _asked(seed: int, b: int, plan: Plan, size: int) -> Asked:
    drawn = address_hash(seed, _ASKED, b)
    counts = [address_hash(seed, _ASKED, b, token) % 4 // 2 for token in range(size)]
    counts[plan.tree.tokens[0]] += 1  # the root has been emitted
    return Asked(
        counts=counts,
        frequency=(1 + drawn % 3) / 4,
        presence=(1 + drawn // 3 % 2) / 2,
        repetition=2.0,
        bias=[address_hash(seed, _ASKED, b, token, 1) % 9 / 4 - 1 for token in range(size)],
        temperature=(0.5, 1.0, 2.0)[drawn // 8 % 3],
        min_p=(0.0, 2.0**-6, 2.0**-3)[drawn // 32 % 3],
        grammar=_grammar(seed, b, plan, size),
        state=0,
    )


def _grammar(seed: int, b: int, plan: Plan, size: int) -> list[list[int]]:
    """States by the hash of the way to them; most of what is drafted is allowed, much else is not."""
    table = [
        [
            (state + 1 + address_hash(seed, _GRAMMAR, b, state, token)) % _STATES
            for token in range(size)
        ]
        for state in range(_STATES)
    ]
    allowed = [{state % size} for state in range(_STATES)]
    states = [0]
    for node in range(1, len(plan.tree)):
        above, token = states[plan.tree.parents[node]], plan.tree.tokens[node]
        states.append(table[above][token])
        if address_hash(seed, _GRAMMAR, b, node) % 8:
            allowed[above].add(token)
    for state, line in enumerate(table):
        for token in range(size):
            barred = address_hash(seed, _GRAMMAR, b, state, token, 1) % 2
            if barred and token not in allowed[state]:
                line[token] = -1
    return table


def judge_processed(given: Processed, found: npt.NDArray[np.float32]) -> list[Failure]:
    """Logits (T, V) that `process` returned; a failure for the first wrong token of each row."""
    failures = []
    for b, row, wanted in given.expected:
        at = given.case.qo_indptr[b] + row
        got, limit = found[at].tolist(), 0.0
        if not given.exact:
            limit = rounding(given.asked[b], given.logits[at].tolist(), len(given.plans[b].tree))
        free = {} if given.exact else _near_cut(given, b, row, limit)
        wrong = [
            token
            for token, pair in enumerate(zip(wanted, got, strict=True))
            if _unlike(*pair, limit) and not _either_way(free.get(token), pair[1], limit)
        ]
        if wrong:
            failures.append(_failure(given, b, row, wrong[0], wanted, got))
    return failures


def _near_cut(given: Processed, b: int, row: int, limit: float) -> dict[int, float]:
    """Tokens that rounding puts on either side of the edge of a min-p, and the logits that they then have."""
    asked, plan = given.asked[b], given.plans[b]
    if not asked.min_p:
        return {}
    drafts = [plan.tree.tokens[on] for on in plan.tree.path(plan.rows.index(row))[1:]]
    logits = given.logits[given.case.qo_indptr[b] + row].tolist()
    made = processed(logits, drafts, replace(asked, min_p=0.0))
    assert made is not None
    cut = math.log(asked.min_p)
    edge, doubt = max(made) + cut, 2 * limit + 8 * U_32 * abs(cut)
    return {token: logit for token, logit in enumerate(made) if abs(logit - edge) <= doubt}


def _either_way(logit: float | None, got: float, limit: float) -> bool:
    """Whether it is cut off or is this logit."""
    return logit is not None and (got == -math.inf or abs(got - logit) <= limit)


def rounding(asked: Asked, logits: Sequence[float], drafts: int) -> float:
    """How far float32 may be off: a product and two differences, a rate, a bias and a temperature, each
    rounded once, and once more where it multiplies by a reciprocal. At a logit near 0, by whose sign a
    rate divides or multiplies, both come to the same within this."""
    counted = max(asked.counts) + drafts
    size = max(map(abs, logits)) + abs(asked.frequency) * counted + abs(asked.presence)
    size = size * max(asked.repetition, 1 / asked.repetition) + max(map(abs, asked.bias))
    return 8 * U_32 * size / asked.temperature


def _unlike(wanted: float, got: float, limit: float) -> bool:
    if math.isinf(wanted) or math.isinf(got):
        return wanted != got
    return not abs(wanted - got) <= limit


def _failure(
    given: Processed, b: int, row: int, token: int, wanted: Sequence[float], got: Sequence[float]
) -> Failure:
    return Failure(
        identity="output", kind="wrong-processing", evidence="measured", stage="process",
        request=b, row=row, expected=f"{wanted[token]:g}", actual=f"{got[token]:g}",
        message=f"the processed logit of token {token} is {got[token]:g} at "
        f"{row_name(given.case.requests[b], row)}, expected {wanted[token]:g} by the drafts on its path",
    )  # fmt: skip
