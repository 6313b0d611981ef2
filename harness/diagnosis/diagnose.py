"""The cause of what was observed: the one hypothesis that reproduces it on every case tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from treeproof.diagnosis.agreement import fits
from treeproof.diagnosis.apart import Groups, parted, shares
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.evidence import Group, Observation
from treeproof.diagnosis.hypothesis import Candidate, Hypothesis, Variant
from treeproof.diagnosis.narrowing import Narrowing, Observe
from treeproof.diagnosis.world import World, right_of, same_statement

UNKNOWN = "unknown"
MOST_CASES = 5
"""Further cases that are tried, to confirm and to separate."""


@dataclass(frozen=True)
class Diagnosis:
    """`cause`: a hypothesis' name, or `UNKNOWN`. `says`: its sentence. `detail`: in which way it holds.

    `candidates`: all names that explain every case tried, the cause first. `ruled_out`: names that do
    not. `groups`: the evidence that was wrong. `cases_tried` counts the first one. `parts`: where no
    one statement explains all that is wrong on all cases, a diagnosis of each group, several groups
    in one where they have one cause; empty where nothing explains any.
    """

    cause: str
    says: str = ""
    detail: str = ""
    candidates: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    cases_tried: int = 1
    parts: tuple[Diagnosis, ...] = ()


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
    """The cause of what is wrong in `seen`, or of each part of it; None where nothing is wrong.

    `observe` runs the backend on a further case; it gives None where it cannot.
    """
    wrong = wrong_groups(seen)
    if not wrong:
        return None
    observe = cache(observe)
    search = Narrowing(seen, wrong, tuple(_explaining(seen, wrong, hypotheses)))
    search.go(observe, most_cases)
    found = _result(search, hypotheses)
    return found if search.left else _by_parts(found, seen, observe, hypotheses, most_cases)


def _explaining(
    seen: Observation, wrong: Sequence[Group], hypotheses: Sequence[Hypothesis]
) -> Iterator[Candidate]:
    right = right_of(seen)
    for hypothesis in hypotheses:
        if not hypothesis.groups.issuperset(wrong):
            continue
        before, explained = right, False
        for variant in hypothesis.variants(right):
            if variant.world is not before:  # ways that are one on this case come one after another
                before, explained = variant.world, explains(variant, seen, wrong, right)
            if explained:
                yield Candidate(hypothesis, variant.detail, variant.family, variant.world.rival)


def _by_parts(
    whole: Diagnosis,
    seen: Observation,
    observe: Observe,
    hypotheses: Sequence[Hypothesis],
    most_cases: int,
) -> Diagnosis:
    """The same with its parts, of which what explains nothing on further cases is taken apart again."""
    candidates: dict[Groups, list[Candidate]] = {}
    for share in shares(seen, whole.groups, hypotheses):
        candidates.setdefault(share.groups, []).append(share.candidate)
    rest, parts = whole.groups, []
    while chosen := parted(candidates, rest):
        for groups in chosen:
            alone = tuple(group for group in rest if group in groups)
            search = Narrowing(seen, alone, tuple(candidates.pop(groups)), beside=True)
            search.go(observe, most_cases)
            if search.left:
                parts.append(_result(search, hypotheses))
                rest = tuple(group for group in rest if group not in groups)
    if not parts:
        return whole
    is_all = len(parts) == 1 and not rest
    return replace(parts[0] if is_all else whole, parts=(*parts, *_left_over(whole, rest)))


def _left_over(whole: Diagnosis, groups: Sequence[Group]) -> Iterable[Diagnosis]:
    return [replace(whole, groups=tuple(groups))] if groups else []


def _result(search: Narrowing, hypotheses: Sequence[Hypothesis]) -> Diagnosis:
    rivalled = {c.hypothesis.name for c in search.left if c.rival}
    named = [c for c in search.left if c.hypothesis.name not in rivalled]
    names = tuple(dict.fromkeys(c.hypothesis.name for c in named))
    tried = tuple(h.name for h in hypotheses if h.name not in names)
    count = 1 + len(search.tried)
    if not names:
        return Diagnosis(UNKNOWN, ruled_out=tried, groups=search.wrong, cases_tried=count)
    first = named[0]
    return Diagnosis(
        cause=first.hypothesis.name,
        says=first.hypothesis.says,
        detail=first.detail,
        candidates=names,
        ruled_out=tried,
        groups=search.wrong,
        cases_tried=count,
    )
