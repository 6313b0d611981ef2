"""What is kept of a run's events while they are read once: verdicts whole, evidence by its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec

from treeproof.contract.event import (
    CaseDrawn,
    Checked,
    Covered,
    Diagnosed,
    Event,
    Finished,
    Halved,
    Left,
    Reduced,
    Sanitized,
    Shown,
    Tolerated,
    WorkerLost,
)
from treeproof.contract.failure import Failure, Identity
from treeproof.engine.completed import REDUCED_UNIT
from treeproof.engine.loss import with_loss
from treeproof.engine.run_folder import Damage, Place, Placed

T = TypeVar("T", bound=Hashable)

Check = tuple[str, str]
"""Case and backend."""
Key = tuple[str, Identity, str]
"""Backend, identity, kind: failures alike in these are the same one."""


@dataclass
class Gathered:
    """Everything that is said of a whole run. What takes room, the words of failures and what was
    recovered or shown, stays in the files and is read again where it is needed."""

    cases: dict[str, CaseDrawn] = field(default_factory=dict)
    """By case, in the order they were drawn."""
    checks: dict[Check, Checked] = field(default_factory=dict)
    """Without what `whole` adds."""
    places: dict[Check, tuple[Place, ...]] = field(default_factory=dict)
    """Where a check stands in which something failed; in two parts where a worker was lost over it."""
    shown: dict[Check, Place] = field(default_factory=dict)
    reduced: dict[tuple[str, str, str], Reduced] = field(default_factory=dict)
    diagnosed: dict[tuple[str, str, str], Diagnosed] = field(default_factory=dict)
    sanitized: dict[Check, Sanitized] = field(default_factory=dict)
    tolerated: dict[Check, frozenset[int]] = field(default_factory=dict)
    """Entries of the ledger that a failure of the check was held to be."""
    covered: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of all checks but those of the reducer, by backend, then by part."""
    losses: list[WorkerLost] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    halved: list[Halved] = field(default_factory=list)
    finished: Finished | None = None
    damage: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Placed | Damage]) -> Gathered:
        found, alike = cls(), _Alike()
        for one in events:
            if isinstance(one, Damage):
                found.damage.append(one.where)
            else:
                found._add(*one, alike)
        return found

    def _add(self, place: Place, event: Event, alike: _Alike) -> None:
        if isinstance(event, Checked):
            self._check(place, event, alike)
        elif isinstance(event, CaseDrawn):
            if event.case not in self.cases:
                tags = alike.one(tuple(map(alike.one, event.tags)))
                drawn = msgspec.structs.replace(event, tags=tags, unit=alike.one(event.unit))
                self.cases[alike.one(event.case)] = drawn
        elif isinstance(event, WorkerLost):
            self.losses.append(event)
        elif isinstance(event, Halved):
            self.halved.append(event)
        elif isinstance(event, Reduced):
            self.reduced[event.backend, event.identity, event.kind] = event
        elif isinstance(event, Diagnosed):
            self.diagnosed[event.backend, event.identity, event.kind] = event
        elif isinstance(event, Shown):
            self.shown[event.case, event.backend] = place
        elif isinstance(event, Sanitized):
            self.sanitized[event.case, event.backend] = event
        elif isinstance(event, Tolerated):
            check = event.case, event.backend
            entries = self.tolerated.get(check, frozenset()) | {event.entry}
            self.tolerated[check] = alike.one(entries)
        elif isinstance(event, Left):
            self.left.append(event)
        elif isinstance(event, Covered):
            self.covered[event.entry] += event.checks
        elif isinstance(event, Finished):
            self.finished = self.finished or event

    def _check(self, place: Place, event: Checked, alike: _Alike) -> None:
        drawn = self.cases.get(event.case)
        if drawn is None or drawn.unit != REDUCED_UNIT:  # such a case is drawn before it is checked
            parts = self.seconds.setdefault(event.backend, {})
            for part, seconds in event.seconds.items():
                parts[part] = parts.get(part, 0.0) + seconds
        new, at = _outline(event, alike), (alike.one(event.case), alike.one(event.backend))
        before = self.checks.get(at)
        found = new if before is None else with_loss(before, new)
        places = self.places.pop(at, ()) if found is not new else ()
        if new.failures:
            places = (*places, place)
        if places:
            self.places[at] = places
        self.checks[at] = found

    def whole(self, check: Checked) -> Checked:
        """The check with all its failures, in words, and what was recovered.

        Raises FileError where its file is gone.
        """
        parts = [place.read() for place in self.places.get((check.case, check.backend), ())]
        return msgspec.structs.replace(
            check,
            failures=tuple(f for part in parts if isinstance(part, Checked) for f in part.failures),
            recovered=tuple(r for p in parts if isinstance(p, Checked) for r in p.recovered),
        )


class _Alike:
    """One object for all values that are equal: of a hundred thousand checks most are alike."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, Hashable] = {}

    def one(self, value: T) -> T:
        return cast(T, self._seen.setdefault(value, value))


def _outline(check: Checked, alike: _Alike) -> Checked:
    """The check without its evidence: of failures that are alike in all but words, one without any."""
    failures = dict.fromkeys(
        Failure(
            identity=f.identity, kind=f.kind, evidence=f.evidence, stage=f.stage, message="",
            cause=f.cause, severity=f.severity, probe=f.probe,
        )
        for f in check.failures
    )  # fmt: skip
    return Checked(
        case=alike.one(check.case),
        backend=alike.one(check.backend),
        cells=alike.one(check.cells),
        failures=alike.one(tuple(map(alike.one, failures))),
        margin=check.margin,
        margin_rest=check.margin_rest,
        kernels=alike.one(check.kernels),
        generated=check.generated,
        acceptance=alike.one(check.acceptance),
    )
