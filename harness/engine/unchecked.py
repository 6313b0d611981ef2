"""What a run was asked for and did not come to: what is written down of it, and what it amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeproof.contract.event import CaseDrawn, Checked, Left
from treeproof.engine.completed import COMPLETED
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.supply import Supply

if TYPE_CHECKING:
    from treeproof.engine.summary import Run


@dataclass(frozen=True)
class Unchecked:
    """Of one backend."""

    units: tuple[str, ...]
    cases: int
    classes: tuple[str, ...]
    """Event classes that the run would have had, and in which nothing was judged."""
    undrawn: int = 0
    """Units of which it is not known what classes they have."""


def left_events(supply: Supply, backends: Sequence[BackendMeta]) -> Iterator[Left]:
    """A line for each part of a run of these backends that is not used up, and for those of them whose
    cases would have had the same classes."""
    from treeproof.generate.tags import tags

    for source, cases, drawn in supply.unchecked():
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in sorted(backend.name for backend in backends if source.is_for(backend)):
            found = {tag for case in drawn for tag in tags(source.fitted(case, name))}
            alike.setdefault(tuple(sorted(found)), []).append(name)
        for classes, names in alike.items():
            yield Left(unit=source.name, backends=tuple(names), cases=cases, tags=classes)


def unchecked(
    left: Iterable[Left], cases: Iterable[CaseDrawn], checks: Iterable[Checked]
) -> dict[str, Unchecked]:
    """By backend, those that got through all of it apart."""
    tags = {case.case: case.tags for case in cases}
    judged: dict[str, set[str]] = {}
    for check in checks:
        if any(cell.status in COMPLETED for cell in check.cells):
            judged.setdefault(check.backend, set()).update(tags[check.case])
    of_backend: dict[str, list[Left]] = {}
    for event in left:
        for backend in event.backends:
            of_backend.setdefault(backend, []).append(event)
    return {
        backend: Unchecked(
            units=tuple(dict.fromkeys(event.unit for event in events)),
            cases=sum(event.cases for event in events),
            classes=tuple(
                sorted({tag for e in events for tag in e.tags} - judged.get(backend, set()))
            ),
            undrawn=sum(not event.tags for event in events),
        )
        for backend, events in of_backend.items()
    }


def least_left(runs: Sequence[Run]) -> dict[tuple[str, str], int | None]:
    """Of each part and backend that some run did not come to the end of: the number of the run that left
    the fewest cases of it; None where another run left none.
    """
    left: dict[tuple[str, str], dict[int, int]] = {}
    for number, run in enumerate(runs):
        for event in run.found.left:
            for backend in event.backends:
                left.setdefault((event.unit, backend), {})[number] = event.cases
    done = [_units_checked(run) for run in runs]
    return {
        at: None
        if any(at in units for number, units in enumerate(done) if number not in of_run)
        else min(of_run, key=lambda number: (of_run[number], number))
        for at, of_run in left.items()
    }


def _units_checked(run: Run) -> set[tuple[str, str]]:
    units = {case.case: case.unit for case in run.cases}
    return {(units[check.case], check.backend) for check in run.checks}
