"""Which part of a diagnosis a failure belongs to, where a backend has several faults.

A failure belongs to the groups of evidence that it is read from. A check, unlike an observation, lets
what a build got wrong run on into the stages behind it: there a failure may come from the stage's own
groups or from any of the build's. Where more than one part may be behind it, the build is repaired a
part at a time, and what the failure goes away with is its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from treeproof.contract.failure import Failure
from treeproof.diagnosis.apart import STAGE_OF, Groups
from treeproof.diagnosis.diagnose import Diagnosis
from treeproof.diagnosis.evidence import Group, Observation

_BUILD: Groups = frozenset(group for group, stage in STAGE_OF.items() if stage == "build")
_DECLARED: dict[str, Groups] = {
    "candidate": frozenset({"tokens"}),
    "position": frozenset({"positions"}),
    "visibility": frozenset({"tables", "links"}),
    "traversal": frozenset({"links"}),
    "kv": frozenset({"slots", "lengths"}),
}
_STALE = "stale"
_BY_ITSELF = frozenset({"draft", "merge", "select"})
"""Stages that are tried on something of their own, which no build has a part in."""

Repaired = Callable[[Groups], Sequence[Failure]]
"""What still fails where these groups of a build are right."""


def behind(failure: Failure, seen: Observation) -> Groups:
    """All groups that a failure may come from."""
    broken = {(kind, stage) for kind, stage, _ in seen.found.get("contract", ())}
    if failure.identity == "contract" and (failure.kind, failure.stage) in broken:
        return frozenset({"contract"})
    if failure.probe == _STALE:
        return frozenset({"again"})
    if failure.evidence == "declared" and failure.stage == "build":
        return _DECLARED.get(failure.identity, frozenset())
    own: set[Group] = {group for group, stage in STAGE_OF.items() if stage == failure.stage}
    return frozenset(own) if failure.stage in _BY_ITSELF else frozenset(own | _BUILD)


def part_of(
    failure: Failure, seen: Observation, parts: Sequence[Diagnosis], repaired: Repaired
) -> Diagnosis | None:
    """The part that explains this failure; None where it may be more than one, or is none."""
    suspects = suspected(failure, seen, parts)
    if len(suspects) == 1:
        return suspects[0]
    in_build = [part for part in suspects if _BUILD.issuperset(part.groups)]
    behind_it = [part for part in suspects if part not in in_build]
    needed = [part for part in in_build if _goes_away(failure, part.groups, repaired)]
    if len(needed) == 1:
        return needed[0]
    if needed or len(behind_it) != 1:
        return None
    every = frozenset(group for part in in_build for group in part.groups)
    return behind_it[0] if _goes_away(failure, every, repaired) is False else None


def suspected(
    failure: Failure, seen: Observation, parts: Sequence[Diagnosis]
) -> tuple[Diagnosis, ...]:
    """Parts that may be behind a failure."""
    groups = behind(failure, seen)
    return tuple(part for part in parts if not groups.isdisjoint(part.groups))


def _goes_away(failure: Failure, groups: Collection[Group], repaired: Repaired) -> bool | None:
    """Whether it does with these groups repaired; None where they could not be."""
    left = repaired(frozenset(groups))
    declared = [f for f in left if f.evidence == "declared" and f.identity in _DECLARED]
    if any(not _DECLARED[f.identity].isdisjoint(groups) for f in declared):
        return None
    return failure.key not in {f.key for f in left}
