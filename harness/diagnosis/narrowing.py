"""Candidates held against further cases until those left can be told apart no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.agreement import fits
from treeproof.diagnosis.apart import says_the_same
from treeproof.diagnosis.evidence import Group, Observation
from treeproof.diagnosis.further import further_cases
from treeproof.diagnosis.hypothesis import Candidate, Hypothesis
from treeproof.diagnosis.imagined import Foretold, alike, unseen
from treeproof.diagnosis.world import World, right_of

CONFIRMED = 2
"""Further cases on which a cause has to show, where there are any."""
_LOOKED_AT = 6
"""Cases that are compared before the one that tells most is taken."""
_MANY = 12
"""Different predictions of a case that are told apart; more tell no more."""

Observe = Callable[[VerifyCase], Observation | None]


@dataclass
class Narrowing:
    """Candidates left, and what has been tried. `wrong`: the groups that they explain.

    `beside`: other groups may be wrong too, where a candidate says nothing of them; else they must
    be right.
    """

    seen: Observation
    wrong: tuple[Group, ...]
    left: tuple[Candidate, ...]
    beside: bool = False
    tried: list[VerifyCase] = field(default_factory=list)
    ways: dict[tuple[str, int, str], _Ways] = field(default_factory=dict)
    """By hypothesis, family and case."""

    def go(self, observe: Observe, most: int) -> None:
        """Try up to so many cases."""
        cases = [c for c in further_cases(self.seen.case) if c.id != self.seen.case.id]
        while self.left and len(self.tried) < most:
            case = self._telling(cases)
            if case is None:
                return
            cases.remove(case)
            observation = observe(case)
            if observation is not None and self._is_about(observation):
                self.tried.append(case)
                self.left = self._holding(observation)

    def _is_about(self, seen: Observation) -> bool:
        """Whether all that was wrong can be seen here; a stage that fails outright shows nothing."""
        if not all(group in seen.found for group in self.wrong):
            return False
        return not any(
            "contract" in now.wrong and "contract" not in first.wrong
            for first in self.seen.found.get("again", ())
            for now in seen.found.get("again", ())
        )

    def _holding(self, seen: Observation) -> tuple[Candidate, ...]:
        """Candidates that predict what was wrong as it is here too, and all others right."""
        right = right_of(seen)
        also = [g for g in seen.found if g not in self.wrong and not fits(seen, g, right)]
        return tuple(
            candidate for candidate in self.left if self._holds(candidate, right, also, seen)
        )

    def _holds(
        self, candidate: Candidate, right: World, also: Sequence[Group], seen: Observation
    ) -> bool:
        world = self._world(candidate, right)
        for group in self.wrong:
            # A contract may be broken on some cases only; how it is broken is all that is stated.
            may_be_right = group == "contract" and fits(seen, group, right)
            if not may_be_right and not fits(seen, group, world):
                return False
        if self.beside:
            return all(says_the_same(world, right, g, seen) or fits(seen, g, world) for g in also)
        return all(self._also(candidate, g) and fits(seen, g, world) for g in also)

    def _also(self, candidate: Candidate, group: Group) -> bool:
        """Whether the first case was right in a group because nothing else was stated of it there.

        A merge of two parts does not show in attention as long as one of them is empty.
        """
        world = self._world(candidate, right_of(self.seen))
        return group in self.seen.found and fits(self.seen, group, world)

    def _world(self, candidate: Candidate, right: World) -> World:
        """What a candidate states on a case; the truth where it cannot hold there."""
        place = (candidate.hypothesis.name, candidate.family, right.ground.case.id)
        if place not in self.ways:
            self.ways[place] = _Ways(candidate.hypothesis, candidate.family, right)
        return self.ways[place].world(candidate.detail) or right

    def _telling(self, cases: Sequence[VerifyCase]) -> VerifyCase | None:
        """A case on which the candidates predict as many different things as may be.

        Until `CONFIRMED` cases have been tried the truth counts as one of them: what is named has to
        show there. None where no case would tell any apart.
        """
        confirming = len(self.tried) < CONFIRMED
        best, most = None, 1
        for looked_at, case in enumerate(cases):
            if looked_at >= _LOOKED_AT and best is not None:
                break
            kinds = self._kinds(case, confirming)
            if kinds > most:
                best, most = case, kinds
            if most >= min(_MANY, len(self.left) + confirming):
                break
        return best

    def _kinds(self, case: VerifyCase, confirming: bool) -> int:
        """How many different things are predicted on a case, up to `_MANY`; nothing is run."""
        right = right_of(self.seen, case)
        like = unseen(case, self.seen, self.wrong)
        kinds = [Foretold(right, like)] if confirming else []
        for candidate in self.left:
            told = Foretold(self._world(candidate, right), like)
            if not any(self._alike(told, other) for other in kinds):
                kinds.append(told)
            if len(kinds) >= _MANY:
                break
        return len(kinds)

    def _alike(self, a: Foretold, b: Foretold) -> bool:
        return all(alike(a, b, group) for group in self.wrong)


class _Ways:
    """The ways of one family in which a hypothesis may hold on one case, gone through once for all
    candidates."""

    def __init__(self, hypothesis: Hypothesis, family: int, right: World) -> None:
        self._rest = hypothesis.variants(right, family)
        self._worlds: dict[str, World] = {}

    def world(self, detail: str) -> World | None:
        """What is stated in this way; None where it cannot hold there."""
        if detail in self._worlds:
            return self._worlds[detail]
        for variant in self._rest:
            first = self._worlds.setdefault(variant.detail, variant.world)
            if variant.detail == detail:
                return first
        return None
