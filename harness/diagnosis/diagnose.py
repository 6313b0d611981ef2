"""The cause of what was observed: the one hypothesis that reproduces it on every case tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.agreement import fits
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.evidence import Group, Observation
from treeproof.diagnosis.further import further_cases
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.hypothesis import Hypothesis, Variant
from treeproof.diagnosis.imagined import imagined, unseen
from treeproof.diagnosis.world import World, same_statement, truth

UNKNOWN = "unknown"
MOST_CASES = 5
"""Further cases that are tried, to confirm and to separate."""
CONFIRMED = 2
"""Further cases on which a cause has to show, where there are any."""
_LOOKED_AT = 6
"""Cases that are compared before the one that tells most is taken."""

Observe = Callable[[VerifyCase], Observation | None]


@dataclass(frozen=True)
class Diagnosis:
    """`cause`: a hypothesis' name, or `UNKNOWN`. `says`: its sentence. `detail`: in which way it holds.

    `candidates`: all names that explain every case tried, the cause first. `ruled_out`: names that do
    not. `groups`: the evidence that was wrong. `cases_tried` counts the first one.
    """

    cause: str
    says: str = ""
    detail: str = ""
    candidates: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    cases_tried: int = 1


@dataclass(frozen=True)
class Candidate:
    """A hypothesis in one of its ways; both are the same on every case."""

    hypothesis: Hypothesis
    detail: str

    def world(self, right: World) -> World | None:
        """What it states on this case; None where it cannot hold there."""
        return next(
            (v.world for v in self.hypothesis.variants(right) if v.detail == self.detail), None
        )


def right_of(seen: Observation, case: VerifyCase | None = None) -> World:
    """The truth on what was seen, or of the same backend on another case."""
    return truth(Ground.of(case or seen.case, seen.leaves, seen.model))


def wrong_groups(seen: Observation) -> tuple[Group, ...]:
    """Evidence that is not what a right backend gives."""
    right = right_of(seen)
    return tuple(group for group in seen.found if not fits(seen, group, right))


def explains(candidate: Variant, seen: Observation, wrong: Sequence[Group], right: World) -> bool:
    """Whether the statement reproduces every group that is wrong; right ones are right already."""
    if candidate.world.beside and set(wrong) == {"contract"}:
        return False  # what comes beside other evidence does not come alone
    return all(
        not same_statement(candidate.world, right, group) and fits(seen, group, candidate.world)
        for group in wrong
    )


def diagnose(
    seen: Observation,
    observe: Observe,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
    most_cases: int = MOST_CASES,
) -> Diagnosis | None:
    """The cause of what is wrong in `seen`; None where nothing is wrong.

    `observe` runs the backend on a further case; it gives None where it cannot.
    """
    wrong = wrong_groups(seen)
    if not wrong:
        return None
    search = _Search(seen, wrong, tuple(_explaining(seen, wrong, hypotheses)))
    search.go(observe, most_cases)
    return search.result(hypotheses)


def _explaining(
    seen: Observation, wrong: Sequence[Group], hypotheses: Sequence[Hypothesis]
) -> Iterator[Candidate]:
    right = right_of(seen)
    for hypothesis in hypotheses:
        if not hypothesis.groups.issuperset(wrong):
            continue
        for variant in hypothesis.variants(right):
            if explains(variant, seen, wrong, right):
                yield Candidate(hypothesis, variant.detail)


@dataclass
class _Search:
    """Candidates left, and what has been tried."""

    seen: Observation
    wrong: tuple[Group, ...]
    left: tuple[Candidate, ...]
    tried: list[VerifyCase] = field(default_factory=list)
    worlds: dict[tuple[str, str, str], World] = field(default_factory=dict)

    def go(self, observe: Observe, most: int) -> None:
        cases = [c for c in further_cases(self.seen.case) if c.id != self.seen.case.id]
        while self.left and len(self.tried) < most:
            case = self._telling(cases)
            if case is None:
                return
            cases.remove(case)
            observation = observe(case)
            if observation is not None and self._is_about(observation):
                self.tried.append(case)
                self.left = tuple(c for c in self.left if self._holds(c, observation))

    def _is_about(self, seen: Observation) -> bool:
        """Whether all that was wrong can be seen here; a stage that fails outright shows nothing."""
        if not all(group in seen.found for group in self.wrong):
            return False
        return not any(
            "contract" in now.wrong and "contract" not in first.wrong
            for first in self.seen.found.get("again", ())
            for now in seen.found.get("again", ())
        )

    def _holds(self, candidate: Candidate, seen: Observation) -> bool:
        """Whether the groups that were wrong are as predicted here too, and all others right."""
        right = right_of(seen)
        world = self._world(candidate, right)
        return all(
            fits(seen, group, world if group in self.wrong else right)
            # A contract may be broken on some cases only; how it is broken is all that is stated.
            or (group == "contract" and fits(seen, group, right))
            for group in seen.found
        )

    def _world(self, candidate: Candidate, right: World) -> World:
        """What a candidate states on a case; the truth where it cannot hold there."""
        place = (candidate.hypothesis.name, candidate.detail, right.ground.case.id)
        if place not in self.worlds:
            self.worlds[place] = candidate.world(right) or right
        return self.worlds[place]

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
            if most == len(self.left) + confirming:
                break
        return best

    def _kinds(self, case: VerifyCase, confirming: bool) -> int:
        """How many different things are predicted on a case; nothing is run."""
        right = right_of(self.seen, case)
        kinds: list[World] = [right] if confirming else []
        like = unseen(case, self.seen, self.wrong)
        for candidate in self.left:
            world = self._world(candidate, right)
            if not any(self._alike(world, other, like) for other in kinds):
                kinds.append(world)
        return len(kinds)

    def _alike(self, a: World, b: World, like: Observation) -> bool:
        return all(
            same_statement(a, b, group) or fits(imagined(like, group, a), group, b)
            for group in self.wrong
        )

    def result(self, hypotheses: Sequence[Hypothesis]) -> Diagnosis:
        names = tuple(dict.fromkeys(c.hypothesis.name for c in self.left))
        tried = tuple(h.name for h in hypotheses if h.name not in names)
        count = 1 + len(self.tried)
        if not names:
            return Diagnosis(UNKNOWN, ruled_out=tried, groups=self.wrong, cases_tried=count)
        first = self.left[0]
        return Diagnosis(
            cause=first.hypothesis.name,
            says=first.hypothesis.says,
            detail=first.detail,
            candidates=names,
            ruled_out=tried,
            groups=self.wrong,
            cases_tried=count,
        )
