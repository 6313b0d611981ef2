"""Several faults at once: which groups of evidence one statement explains, and which stand apart.

A stage is given what a right build would have given it, so two groups are wrong together because one
mistake is behind both or because there are two. One statement for all of them is looked for first;
only where there is none is each looked at by itself, in as few parts as will do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from treeproof.diagnosis.agreement import fits
from treeproof.diagnosis.evidence import Group, Observation
from treeproof.diagnosis.hypothesis import Candidate, Hypothesis
from treeproof.diagnosis.world import World, right_of, same_statement

Groups = frozenset[Group]

STAGE_OF: Mapping[Group, str] = {
    "tokens": "build", "positions": "build", "slots": "build", "lengths": "build",
    "links": "build", "tables": "build", "attend": "attend", "layers": "attend", "merge": "merge",
    "accept": "accept", "commit": "commit", "forward": "forward", "select": "select",
    "draft": "draft", "extend": "extend",
}  # fmt: skip
"""The stage whose doing a group shows."""


_IN_ANOTHER_LAUNCH = frozenset({
    "not-capturable", "captured-lengths", "captured-tables", "captured-mask", "captured-positions",
    "captured-slots", "captured-links", "captured-tokens",
})  # fmt: skip
"""Contracts that are broken where a launch is captured and replayed, which spoils no other."""


@dataclass(frozen=True)
class Share:
    """A candidate that says, of some of the groups that are wrong, just what was seen, and of the
    others that they are right."""

    groups: Groups
    candidate: Candidate


def shares(
    seen: Observation, wrong: Sequence[Group], hypotheses: Sequence[Hypothesis]
) -> Iterator[Share]:
    """Every candidate that explains some groups and contradicts none, in order."""
    right = right_of(seen)
    together = _inseparable(seen, wrong)
    for hypothesis in hypotheses:
        if hypothesis.groups.isdisjoint(wrong):
            continue
        for variant in hypothesis.variants(right):
            groups = _explained(variant.world, seen, wrong, right)
            whole = groups.issuperset(together) or groups.isdisjoint(together)
            if groups and groups <= hypothesis.groups and whole:
                yield Share(
                    groups,
                    Candidate(hypothesis, variant.detail, variant.family, variant.world.rival),
                )


def _inseparable(seen: Observation, wrong: Sequence[Group]) -> Groups:
    """A broken contract and what else is wrong in that stage: whatever breaks a stage is apt to
    spoil what it gives."""
    if "contract" not in wrong:
        return frozenset()
    stages = {stage for kind, stage, _ in seen.found["contract"] if kind not in _IN_ANOTHER_LAUNCH}
    stages |= {"attend"} if "plan" in stages else set()
    return frozenset({"contract", *(group for group in wrong if STAGE_OF.get(group) in stages)})


def _explained(world: World, seen: Observation, wrong: Sequence[Group], right: World) -> Groups:
    """The groups that are wrong in just this way; none where the statement says what was not seen."""
    stated = [group for group in wrong if not says_the_same(world, right, group, seen)]
    return frozenset(stated) if all(fits(seen, g, world) for g in stated) else frozenset()


def says_the_same(a: World, b: World, group: Group, seen: Observation) -> bool:
    """`same_statement`, and commits by what they hold."""
    if same_statement(a, b, group):
        return True
    return group == "commit" and fits(replace(seen, found={group: b.commits}), group, a)


def parted(options: Iterable[Groups], wrong: Sequence[Group]) -> tuple[Groups, ...]:
    """Options that have no group in common: those that leave the fewest groups over, in the fewest
    parts; of equals, the earliest."""
    return _parted(tuple(dict.fromkeys(options)), tuple(wrong))


def _parted(options: Sequence[Groups], rest: Sequence[Group]) -> tuple[Groups, ...]:
    if not rest:
        return ()
    found: list[tuple[Groups, ...]] = [
        (option, *_parted(options, tuple(group for group in rest if group not in option)))
        for option in options
        if rest[0] in option and option.issubset(rest)
    ]
    found.append(_parted(options, rest[1:]))
    return min(found, key=lambda parts: (-_size(parts), len(parts)))


def _size(parts: Collection[Groups]) -> int:
    return sum(map(len, parts))
