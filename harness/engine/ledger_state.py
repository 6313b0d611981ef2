"""What a run says of its ledger: entries that tolerated something, that are past, or that are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from treeproof.contract.event import Checked
from treeproof.contract.failure import Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.engine.gathered import Gathered

State = Literal[
    "tolerated", "unexpected-pass", "quarantined", "expired", "other-release", "not-reached"
]


@dataclass(frozen=True)
class EntryState:
    """One entry after a run.

    `checks` are those that failed as it says; of a quarantine, those that were not launched.
    `reached`: checks in its scope that judged its identity. `days_left` from the day of the run on,
    that day included; 0 and below: it is past.
    """

    entry: KnownFailure
    state: State
    checks: int
    reached: int
    days_left: int


class KnownFailures:
    """Which failures of which checks the ledger tolerates."""

    def __init__(self, entries: Sequence[KnownFailure], found: Gathered) -> None:
        self._by_number = {entry.number: entry for entry in entries}
        self._tolerated = found.tolerated

    def tolerates(self, check: Checked, failure: Failure) -> bool:
        """Whether an entry was written down for this check and tolerates this failure."""
        entries = self._tolerated.get((check.case, check.backend), ())
        return any(self._by_number[number].tolerates(failure) for number in entries)


def entry_states(
    entries: Sequence[KnownFailure], found: Gathered, today: date
) -> tuple[EntryState, ...]:
    """In the order of the ledger."""
    failing = Counter(number for numbers in found.tolerated.values() for number in numbers)
    shown = {entry.finding for entry in entries if entry.finding and failing[entry.number]}
    return tuple(
        _state(
            entry,
            failing[entry.number],
            found.covered[entry.number],
            entry.days_left(today),
            together=entry.finding in shown,
        )
        for entry in entries
    )


def _state(
    entry: KnownFailure, failed: int, reached: int, days_left: int, *, together: bool
) -> EntryState:
    """`together`: another entry of its finding failed."""
    state: State
    if days_left <= 0:
        state = "expired"
    elif entry.elsewhere:
        state = "other-release"
    elif entry.treatment == "quarantined":
        state, failed = "quarantined", reached
    elif failed or (reached and together):
        state = "tolerated"
    else:
        state = "unexpected-pass" if reached else "not-reached"
    return EntryState(entry, state, failed, reached, days_left)
