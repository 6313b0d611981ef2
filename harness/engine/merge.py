"""Several run folders as one: runs of shards, of single backends, of other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from treeproof.contract.event import (
    CaseDrawn,
    Checked,
    Diagnosed,
    Event,
    Finished,
    Left,
    Reduced,
    Tolerated,
    WorkerLost,
)
from treeproof.contract.wire import FileError
from treeproof.engine.called import called
from treeproof.engine.completed import REDUCED_UNIT
from treeproof.engine.gathered import Check
from treeproof.engine.merged_check import combined, same_verdicts, stands
from treeproof.engine.merged_meta import merged_meta
from treeproof.engine.merged_source import sources_in_words
from treeproof.engine.representatives import keep_missing
from treeproof.engine.run_folder import RunFolder, encode_event
from treeproof.engine.summary import CLEAN, INCOMPLETE, INTERRUPTED, OWN_FAULT, Run
from treeproof.engine.unchecked import least_left

_NAMED = 3


@dataclass(frozen=True)
class Merged:
    """The union. `repeated` checks were in several of the runs and count once."""

    run: Run
    repeated: int


def merge(
    runs: Sequence[Run],
    into: Path,
    *,
    place: Path | None = None,
    lost: Sequence[str] = (),
    said: Sequence[str] = (),
    interrupted: bool = False,
) -> Merged:
    """Write the union of runs into a new run folder, which is read as any other.

    A check that several runs have counts once: one that judged its backend before one that did not,
    and where they come to other verdicts all of them, which is said. The exit code is decided for
    the union: a backend that one run could not judge may have been judged by another. `lost`: in words,
    what should have been among the runs and is not, which leaves the union incomplete; `said`: what else there
    is to say of it. `interrupted`: more runs were to come. `place`: where the union will stand, if not
    where it is written. Raises FileError where the runs do not belong together, or `into` holds a run or cannot be written.
    """
    meta = merged_meta(runs, into if place is None else place)
    folder = RunFolder(into)
    folder.create(meta)
    union = _Union(runs)
    try:
        for number, run in enumerate(runs):
            for path in sorted((run.folder.path / "cases").glob("*.json")):
                if not (target := folder.path / "cases" / path.name).exists():
                    shutil.copyfile(path, target)
            for path in sorted((run.folder.path / "output").glob("*.txt")):
                shutil.copyfile(path, folder.output(f"{number}-{path.stem}"))
            with folder.events_path(f"{number:0{len(str(len(runs)))}}").open("xb") as stream:
                stream.writelines(encode_event(e) for e in union.events_of(number))
        unread = [*lost, *keep_missing(Run.read(into))]
        code, reason = union.ending(Run.read(into), unread, said)
        if interrupted and code != OWN_FAULT:
            code, reason = INTERRUPTED, "; ".join(filter(None, ["interrupted", reason]))
        with folder.events_path("merged").open("xb") as stream:
            stream.write(encode_event(union.finished(code, reason, folder.written())))
    except OSError as error:
        raise FileError(f"{into}: {error.strerror or error}") from error
    return Merged(Run.read(into), union.repeated)


def _cut_short(run: Run) -> bool:
    """Whether it did not come to its end, or is itself the union of such runs: no other makes up for it."""
    if run.finished is None or run.finished.exit_code == INTERRUPTED:
        return True
    return run.finished.exit_code == INCOMPLETE and run.verdict == CLEAN


class _Union:
    """Which event of which run goes into the union."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.otherwise: list[Check] = []
        """Checks that came to other verdicts in another run."""
        self.repeated = 0
        self._source: dict[Check, int] = {}
        """The run that a check is taken from."""
        self._combined: dict[Check, Checked] = {}
        self._cases: dict[str, int] = {}
        self._smallest: dict[tuple[str, str, str], int] = {}
        """The run that reduced a failure to the smallest case."""
        self._written: set[tuple[object, ...]] = set()
        for number, run in enumerate(runs):
            for case, drawn in run.found.cases.items():
                known = self._cases.get(case)
                if known is None or (
                    drawn.unit != REDUCED_UNIT
                    and runs[known].found.cases[case].unit == REDUCED_UNIT
                ):
                    self._cases[case] = number
            for key, event in run.found.reduced.items():
                best = self._smallest.get(key)
                if best is None or self._size(number, event) < self._size(
                    best, runs[best].found.reduced[key]
                ):
                    self._smallest[key] = number
        self._least_left = least_left(runs)
        self._choose()

    def _size(self, number: int, event: Reduced) -> tuple[int, int, str]:
        drawn = self.runs[number].found.cases[event.reduced]
        return (sum(drawn.rows), sum(drawn.prefixes), event.reduced)

    def _choose(self) -> None:
        holders: dict[Check, list[int]] = {}
        for number, run in enumerate(self.runs):
            for check in run.found.checks:
                holders.setdefault(check, []).append(number)
        for check, numbers in holders.items():
            self.repeated += len(numbers) > 1
            found = [self.runs[n].found.checks[check] for n in numbers]
            judged = [i for i, one in enumerate(found) if stands(one)] or [0]
            self._source[check] = numbers[judged[0]]
            if not all(same_verdicts(found[judged[0]], found[i]) for i in judged):
                self.otherwise.append(check)
                self._combined[check] = combined(
                    [self.runs[numbers[i]].whole(found[i]) for i in judged]
                )

    def events_of(self, number: int) -> Iterator[Event]:
        for event in self.runs[number].events:
            if isinstance(event, CaseDrawn):
                if self._cases[event.case] == number and self._once("case", event.case):
                    yield event
            elif isinstance(event, Checked):
                yield from self._check(number, event)
            elif isinstance(event, WorkerLost):
                if self._once("lost", event.case, event.backend, event.how):
                    yield event
            elif isinstance(event, Reduced | Diagnosed):
                key = event.backend, event.identity, event.kind
                if self._smallest.get(key, number) == number:
                    yield event
            elif isinstance(event, Tolerated):
                if self._once(event.case, event.backend, event.identity, event.kind, event.entry):
                    yield event
            elif isinstance(event, Left):
                yield from self._left(number, event)
            elif not isinstance(event, Finished):
                yield event

    def _left(self, number: int, event: Left) -> Iterator[Left]:
        """For those backends that no other run got further with in this part."""
        backends = [b for b in event.backends if self._least_left[event.unit, b] == number]
        if backends:
            yield msgspec.structs.replace(event, backends=tuple(backends))

    def _check(self, number: int, event: Checked) -> Iterator[Checked]:
        at = event.case, event.backend
        if self._source[at] != number:
            return
        if at not in self._combined:
            yield event
        elif self._once("checked", *at):
            yield self._combined[at]

    def _once(self, *what: object) -> bool:
        if what in self._written:
            return False
        self._written.add(what)
        return True

    def ending(self, union: Run, lost: Sequence[str], further: Sequence[str]) -> tuple[int, str]:
        """Exit code of the union, and what there is to say of it."""
        codes = [None if run.finished is None else run.finished.exit_code for run in self.runs]
        code = union.verdict
        if OWN_FAULT in codes:
            code = OWN_FAULT
        elif code == CLEAN and (lost or any(map(_cut_short, self.runs))):
            code = INCOMPLETE
        said = [
            f"the run in {name} " + (
                "was cut short" if run.finished is None else f"ended so: {run.finished.reason}"
            )
            for run, name in zip(self.runs, called(self.runs), strict=True)
            if run.finished is None or run.finished.reason
        ]  # fmt: skip
        said += sources_in_words(self.runs)
        if self.otherwise:
            named = ", ".join(
                f"{backend} on case {case}" for case, backend in self.otherwise[:_NAMED]
            )
            more = f" and {len(self.otherwise) - _NAMED} more" if self.otherwise[_NAMED:] else ""
            said.append(f"other verdicts in other runs, of which all stand: {named}{more}")
        return code, "; ".join([*said, *lost, *further])

    def finished(self, code: int, reason: str, written: tuple[tuple[str, int], ...]) -> Finished:
        """Seconds are those of all runs together."""
        ends = [run.finished for run in self.runs if run.finished is not None]
        return Finished(
            exit_code=code,
            seconds=sum(end.seconds for end in ends),
            reason=reason,
            checking=sum(end.checking for end in ends),
            written=written,
        )
