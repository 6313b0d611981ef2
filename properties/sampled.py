"""Traversal, sampled: for given probabilities and coins acceptance emits what the oracle emits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.sampling import CHAIN, GREEDY, TARGET_ONLY, TYPICAL, Rule
from treeproof.oracles.law import Tokens, Walk, target_only
from treeproof.oracles.rules import chain, greedy, typical, typical_ends
from treeproof.oracles.sampled import exactly, outcomes
from treeproof.properties.naming import row_name
from treeproof.properties.plans import Plan

_U_32 = Fraction(1, 1 << 24)
_DOUBT = 2.0**-16
"""How far an entropy over thousands of tokens, and a product of probabilities, may be off in float32."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sampled:
    """One launch of `sample`: what is handed in, and what may come out.

    `tokens` (T,) replaces `draft_token`: numbers below V, distinct among siblings. `probs` (T, V),
    `coins` (T,), `last` (B,). `draft` (B, S, V), rule `chain` alone. `exact`: no rounding can put a
    coin on the other side of an edge; with `last_in_doubt`, that of the last token excepted.
    """

    what: str
    case: VerifyCase
    plans: tuple[Plan, ...]
    tokens: npt.NDArray[np.int64]
    probs: Floats
    coins: Floats
    last: Floats
    exact: bool
    last_in_doubt: bool = False
    rule: Rule = TARGET_ONLY
    draft: Floats | None = None
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    epsilon: float = 0.09
    delta: float = 0.3

    @cached_property
    def runs(self) -> tuple[Tokens, ...]:
        """Of each request what exact arithmetic emits."""
        found: list[Tokens] = []
        for b in range(len(self.plans)):
            walks, coins = self._asked(b)
            found += outcomes(walks[0], coins, exactly)
        return tuple(found)

    def excused(self, b: int) -> frozenset[Tokens]:
        """All that rounding excuses of a request, its run among them."""
        if self.exact and not self.last_in_doubt:
            return frozenset({self.runs[b]})
        # A sum of n numbers is off by n - 1 roundings at most, its comparison with another by a few.
        rounding = (2 * self.probs.shape[1] + 8) * _U_32

        def slack(coin: Hashable, edges: Sequence[Fraction]) -> Fraction:
            return rounding if coin == "last" or not self.exact else Fraction(0)

        walks, coins = self._asked(b)
        return frozenset({self.runs[b]}).union(*(outcomes(walk, coins, slack) for walk in walks))

    def due(self, b: int, emitted: Tokens) -> Tokens:
        """What request b is to emit: what it did, where rounding excuses that."""
        run = self.runs[b]
        return emitted if emitted != run and emitted in self.excused(b) else run

    def _asked(self, b: int) -> tuple[list[Walk], dict[Hashable, Fraction]]:
        """What the rule does with a request, and its coins."""
        plan = self.plans[b]
        rows = [self.case.qo_indptr[b] + row for row in plan.rows]
        coins: dict[Hashable, Fraction] = {
            node: Fraction(float(self.coins[row])) for node, row in enumerate(rows)
        }
        coins["last"] = Fraction(float(self.last[b]))
        return self._walks(b, plan, rows), coins

    def _walks(self, b: int, plan: Plan, rows: Sequence[int]) -> list[Walk]:
        """What the rule does; where rounding leaves more than one way open, each of them."""
        laws = _Laws(self.probs, rows)
        if self.rule == GREEDY:
            return [greedy(plan.tree, laws)]
        if self.rule == CHAIN:
            assert self.draft is not None
            return [chain(plan.tree, laws, _Laws(self.draft[b], range(len(plan.tree) - 1)))]
        if self.rule == TYPICAL:
            rule = self.probs[rows].tolist(), self.epsilon, self.delta
            (end,) = sorted(typical_ends(plan.tree, *rule))[:1]
            ends = [end, *sorted(typical_ends(plan.tree, *rule, _DOUBT) - {end})]
            return [typical(plan.tree, laws, node) for node in ends]
        single, acc = Fraction(self.threshold_single), Fraction(self.threshold_acc)
        return [target_only(plan.tree, laws, single, acc)]


class _Laws(Sequence[Sequence[Fraction]]):
    """Lines of a table as rationals, made when they are asked for: a walk sees few of them."""

    def __init__(self, probs: Floats, rows: Sequence[int]) -> None:
        self._probs, self._rows = probs, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, node):  # type: ignore[no-untyped-def]
        return [Fraction(share) for share in self._probs[self._rows[node]].tolist()]


def judge_sampled(
    given: Sampled,
    index: Sequence[Sequence[int]],
    lengths: Sequence[int],
    tokens: Sequence[Sequence[int]],
) -> list[Failure]:
    """accept_index (batch-global rows), accept_len and tokens of one launch against the oracle's."""
    failures: list[Failure] = []
    for b, plan in enumerate(given.plans):
        run = given.due(b, tuple(tokens[b][: max(0, lengths[b])]))
        rows = [given.case.qo_indptr[b] + plan.rows[node] for node in _path(plan, run)]
        failures += _unlike(given, b, rows, run, index[b], lengths[b], tokens[b])
    return failures


def _path(plan: Plan, run: Tokens) -> list[int]:
    """Nodes that the tokens of a run lead over; the last token leads nowhere."""
    path = [0]
    for token in run[:-1]:
        path.append(next(c for c in plan.tree.children(path[-1]) if plan.tree.tokens[c] == token))
    return path


def _unlike(
    given: Sampled, b: int, rows: list[int], run: Tokens, index: Sequence[int], length: int,
    tokens: Sequence[int],
) -> Iterator[Failure]:  # fmt: skip
    first, request = given.case.qo_indptr[b], given.case.requests[b]
    wanted = [row - first for row in rows]
    if length != len(rows) or list(index) != [*rows, *[-1] * (len(index) - len(rows))]:
        found = [row if row == -1 else row - first for row in index]
        while found and found[-1] == -1:
            found.pop()
        yield _failure(
            "wrong-acceptance", b, wanted[-1], str(wanted), str(found),
            f"{given.what}: sampled acceptance takes rows {found} with accept_len {length}, expected "
            f"{wanted}, the path to {row_name(request, wanted[-1])}",
        )  # fmt: skip
    elif list(tokens) != [*run, *[-1] * (len(tokens) - len(run))]:
        shown = [token for token in tokens if token != -1]
        yield _failure(
            "wrong-draw", b, wanted[-1], str(list(run)), str(shown),
            f"{given.what}: sampled acceptance emits {shown}, expected {list(run)}, of which the last "
            f"is drawn after {row_name(request, wanted[-1])}",
        )  # fmt: skip


def _failure(kind: str, b: int, row: int, expected: str, actual: str, message: str) -> Failure:
    return Failure(
        identity="traversal", kind=kind, evidence="measured", stage="sample",
        request=b, row=row, expected=expected, actual=actual, message=message,
    )  # fmt: skip
