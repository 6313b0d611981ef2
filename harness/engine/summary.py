"""What a run found, read from its folder and derived from its events; reports stand on this."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path

import msgspec

from treeproof.contract.event import (
    CaseDrawn,
    Checked,
    Diagnosed,
    Event,
    Finished,
    Halved,
    Reduced,
    Shown,
    WorkerLost,
)
from treeproof.contract.failure import COLUMNS, IDENTITIES, Failure
from treeproof.contract.kernels import Kernel
from treeproof.engine.completed import COMPLETED, REDUCED_UNIT, evidence
from treeproof.engine.failure_group import SEVERITIES, FailureGroup
from treeproof.engine.gaps import unable, unjudged
from treeproof.engine.gathered import Gathered, Key
from treeproof.engine.ledger_state import EntryState, KnownFailures, entry_states
from treeproof.engine.run_folder import Damage, RunFolder, RunMeta
from treeproof.engine.unchecked import Unchecked, unchecked

CLEAN, VIOLATED, INCOMPLETE, OWN_FAULT, INTERRUPTED = 0, 1, 3, 4, 130


@dataclass(frozen=True)
class Run:
    """A run, finished or cut short. Evidence of its checks stays in its folder until it is asked for."""

    folder: RunFolder
    meta: RunMeta
    found: Gathered

    @classmethod
    def read(cls, path: Path) -> Run:
        """The run in a folder. Raises FileError where there is none or a newer treeproof wrote it."""
        folder = RunFolder(path)
        return cls(folder, folder.read_meta(), Gathered.of(folder.placed_events()))

    @property
    def events(self) -> Iterator[Event]:
        """All of it, read from the folder anew, one after another."""
        return (one[1] for one in self.folder.placed_events() if not isinstance(one, Damage))

    @property
    def damage(self) -> tuple[str, ...]:
        """Where a file of events does not read or ends too early, in words; what stands before that was
        read."""
        return (*self.meta.damage, *self.found.damage, *self._cut)

    @cached_property
    def _cut(self) -> tuple[str, ...]:
        return () if self.finished is None else self.folder.cut(self.finished.written)

    @cached_property
    def _all_checks(self) -> dict[tuple[str, str], Checked]:
        """By case and backend, in the order of the cases whatever worker was first."""
        order = {case: i for i, case in enumerate(self.found.cases)}
        by_case = self.found.checks.items()
        return dict(sorted(by_case, key=lambda item: (order.get(item[0][0], 0), item[0][1])))

    @cached_property
    def cases(self) -> tuple[CaseDrawn, ...]:
        """Distinct cases of the run, in the order they were drawn.

        A soak is over before the last ones are checked; those are none of it.
        """
        drawn = (case for case in self.found.cases.values() if case.unit != REDUCED_UNIT)
        if not self.meta.settings.get("endless"):
            return tuple(drawn)
        begun = {case for case, _ in self._all_checks}
        return tuple(case for case in drawn if case.case in begun)

    @cached_property
    def checks(self) -> tuple[Checked, ...]:
        """Verdicts on these cases, one for each case and backend. Of failures that are alike in all but
        words there is one, without any; `whole` has them all."""
        own = {case.case for case in self.cases}
        return tuple(check for (case, _), check in self._all_checks.items() if case in own)

    def whole(self, check: Checked) -> Checked:
        """A check with all its failures, in words, and what was recovered, from the folder."""
        return self.found.whole(check)

    @cached_property
    def ledger(self) -> tuple[EntryState, ...]:
        """What became of each known failure, in the order of the ledger."""
        if not self.meta.ledger:
            return ()
        # It was held against the day the run began, and so it stays when a report is made later.
        today = datetime.fromisoformat(self.meta.started).date()
        return entry_states(self.meta.ledger, self.found, today)

    @cached_property
    def _known(self) -> KnownFailures:
        return KnownFailures(self.meta.ledger, self.found)

    def untolerated(self, check: Checked) -> tuple[Failure, ...]:
        """Failures of a check that no entry of the ledger tolerates."""
        return tuple(f for f in check.failures if not self._known.tolerates(check, f))

    def only_known(self, check: Checked) -> frozenset[str]:
        """Columns in which a check fails, and only as the ledger says."""
        failing = {failure.identity for failure in self.untolerated(check)}
        return frozenset({failure.identity for failure in check.failures} - failing)

    def completed_checks(self, backend: str) -> int:
        """Distinct cases on which the backend itself was judged."""
        return self._completed[backend]

    @cached_property
    def _completed(self) -> Counter[str]:
        return Counter(
            check.backend
            for check in self.checks
            if any(cell.status in COMPLETED for cell in check.cells)
        )

    @property
    def backends(self) -> tuple[str, ...]:
        """Names, in the order they were asked for; those that cannot run here included."""
        return tuple(meta.name for meta in self.meta.backends)

    @property
    def unavailable(self) -> dict[str, str]:
        """Backends that cannot run here, and why."""
        return {b.name: b.unavailable for b in self.meta.backends if b.unavailable}

    @cached_property
    def matrix(self) -> dict[str, dict[str, Counter[str]]]:
        """Backend, then column: how many cells, of both evidences together, have each status.

        `known` are those that fail, and only as the ledger says.
        """
        matrix: dict[str, dict[str, Counter[str]]] = {
            backend: {column: Counter() for column in COLUMNS} for backend in self.backends
        }
        for check in self.checks:
            only_known = self.only_known(check)
            for cell in check.cells:
                known = cell.status == "fail" and cell.identity in only_known
                matrix[check.backend][cell.identity]["known" if known else cell.status] += 1
        return matrix

    @cached_property
    def exercised(self) -> dict[str, tuple[str, ...]]:
        """The identities, of the five, on which each backend was judged at all."""
        return {
            backend: tuple(i for i in IDENTITIES if evidence(columns[i]))
            for backend, columns in self.matrix.items()
        }

    @cached_property
    def margins(self) -> dict[str, float]:
        """Worst error over bound of each backend; 1 is the limit. Absent where none was measured."""
        return self._worst("margin")

    @cached_property
    def margins_rest(self) -> dict[str, float]:
        """The same with the rounding of the output itself taken out of both."""
        return self._worst("margin_rest")

    def _worst(self, field: str) -> dict[str, float]:
        worst: dict[str, float] = {}
        for check in self.checks:
            margin = getattr(check, field)
            if margin is not None:
                worst[check.backend] = max(margin, worst.get(check.backend, -math.inf))
        return worst

    @cached_property
    def kernels(self) -> dict[str, tuple[Kernel, ...]]:
        """Those of the kernels that each backend names which were seen to run."""
        seen: dict[str, set[Kernel]] = {}
        for check in self.checks:
            seen.setdefault(check.backend, set()).update(check.kernels)
        by_way = attrgetter("mode", "on", "name")
        return {name: tuple(sorted(found, key=by_way)) for name, found in seen.items()}

    @property
    def losses(self) -> tuple[WorkerLost, ...]:
        return tuple(self.found.losses)

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Workers that ended and nobody is blamed for it, in words."""
        return tuple(_ended(lost) for lost in self.losses if not lost.backend)

    @property
    def halved(self) -> tuple[Halved, ...]:
        """Launches that did not fit into memory."""
        return tuple(self.found.halved)

    @cached_property
    def left(self) -> dict[str, Unchecked]:
        """What it did not come to, by backend."""
        return unchecked(self.found.left, self.cases, self.checks)

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        """Distinct failures that the ledger does not tolerate, worst first: crashes, hangs, then by
        column and number of checks."""
        found: dict[Key, list[Checked]] = {}
        for check in self.checks:
            failures = self.untolerated(check)
            for identity, kind in dict.fromkeys((f.identity, f.kind) for f in failures):
                found.setdefault((check.backend, identity, kind), []).append(check)
        reduced, diagnosed = self.found.reduced, self.found.diagnosed
        groups = [
            self._group(key, checks, reduced.get(key), diagnosed.get(key))
            for key, checks in found.items()
        ]
        return tuple(
            sorted(
                groups,
                key=lambda g: (
                    SEVERITIES.index(g.failure.severity),
                    COLUMNS.index(g.failure.identity),
                    -g.checks,
                    g.key,
                ),
            )
        )

    def shown(self, case: str, backend: str) -> Shown | None:
        """What was seen on the smallest case of a failure, from the folder."""
        place = self.found.shown.get((case, backend))
        event = None if place is None else place.read()
        return event if isinstance(event, Shown) else None

    def _group(
        self,
        key: Key,
        checks: Sequence[Checked],
        reduced: Reduced | None,
        diagnosed: Diagnosed | None,
    ) -> FailureGroup:
        backend, identity, kind = key
        checked = min(checks, key=lambda check: self._size(check.case))
        if reduced is not None:
            smallest = self._all_checks.get((reduced.reduced, backend), checked)
            if any(f.key == (identity, kind) for f in self.untolerated(smallest)):
                checked = smallest
        read = partial(self.whole, checked)
        failure = next(f for f in self.untolerated(read()) if f.key == (identity, kind))
        if diagnosed is not None:
            failure = msgspec.structs.replace(failure, cause=diagnosed.cause)
        return FailureGroup(
            backend=backend,
            identity=identity,
            kind=kind,
            checks=len(checks),
            case=checked.case,
            failure=failure,
            read=read,
            kept=self.folder.reproducer_path(backend, identity, kind),
            reduced=reduced,
            diagnosed=diagnosed,
            sanitized=self.found.sanitized.get((checked.case, backend)),
        )

    def _size(self, case: str) -> tuple[int, int, str]:
        drawn = self.found.cases[case]
        return (sum(drawn.rows), sum(drawn.prefixes), case)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of every request of every case, ascending."""
        return tuple(sorted(rows for case in self.cases for rows in case.rows))

    @cached_property
    def prefixes(self) -> tuple[int, ...]:
        """Prefix lengths in keys, likewise."""
        return tuple(sorted(prefix for case in self.cases for prefix in case.prefixes))

    @cached_property
    def event_classes(self) -> Counter[str]:
        """Cases in each event class."""
        return Counter(tag for case in self.cases for tag in case.tags)

    @cached_property
    def time_split(self) -> dict[str, float]:
        """Seconds of work, all workers together: generate, then what the checks report."""
        split = {"generate": sum(case.seconds for case in self.cases)}
        for parts in self.found.seconds.values():
            for part, seconds in parts.items():
                split[part] = split.get(part, 0.0) + seconds
        return split

    def seconds_of(self, backend: str) -> float:
        """Seconds of work that its checks took."""
        return sum(self.found.seconds.get(backend, {}).values())

    @property
    def finished(self) -> Finished | None:
        """None where the run was cut short without a word."""
        return self.found.finished

    @property
    def unexpected_passes(self) -> tuple[EntryState, ...]:
        """Entries that tolerated nothing although cases in their scope were checked."""
        return tuple(state for state in self.ledger if state.state == "unexpected-pass")

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What was asked for and not checked, in words; each is a reason for exit code 3.

        Of a shard, what it knows by itself: the rest, `undecided`, is for the union to say.
        """
        return (*unable(self), *(() if self.shard else unjudged(self)), *self.damage)

    @cached_property
    def undecided(self) -> tuple[str, ...]:
        """What a shard did not check and another one may have, in words."""
        return tuple(unjudged(self)) if self.shard else ()

    @property
    def shard(self) -> str:
        """Which part of what was asked for this run is, such as 2/4; empty where it is all of it."""
        shard = self.meta.settings.get("shard", {"number": 1, "count": 1})
        return "" if shard["count"] == 1 else f"{shard['number']}/{shard['count']}"

    @property
    def vacuous(self) -> bool:
        """Nothing is wrong and nothing was checked: a shard that holds no part of the run, or none that
        its backends take."""
        return self.exit_code == CLEAN and not any(map(self.completed_checks, self.backends))

    @property
    def exit_code(self) -> int:
        """0 clean, 1 identities violated, 3 not all that was asked for was checked, 4 treeproof
        itself failed, 130 interrupted. A run cut short is 1 or 3, and a damaged one never clean."""
        code = self.verdict or INCOMPLETE if self.finished is None else self.finished.exit_code
        return code or (INCOMPLETE if self.damage else CLEAN)

    @property
    def verdict(self) -> int:
        """The exit code as far as the checks themselves decide it.

        An entry that nothing failed by in one shard may be needed in another.
        """
        if self.failures or (self.unexpected_passes and not self.shard):
            return VIOLATED
        return INCOMPLETE if self.missing else CLEAN


def _ended(lost: WorkerLost) -> str:
    words = lost.detail.partition("\n")[0]
    if not lost.shared:
        return f"{words}, at no check"
    return (
        f"{words}; {', '.join(lost.shared)} had run in it, and nothing that was tried of them alone "
        "ended another, so nobody is blamed"
    )


def percentile(ascending: Sequence[int], percent: int) -> int:
    """The nearest-rank percentile of an ascending sequence; 0 of an empty one."""
    if not ascending:
        return 0
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]
