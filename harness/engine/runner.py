"""One run: every case to every backend, losses blamed, failures reduced, all of it written down."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Began, Checked, Event, Finished, Halved, Underway
from treeproof.contract.failure import COLUMNS, Identity
from treeproof.engine.beginning import (
    begin,
    load_capabilities,
    new_folder,
    worker_settings,
)
from treeproof.engine.blame import LINGER, culprit
from treeproof.engine.budget import budgeted
from treeproof.engine.coverage import CoverageStore, Covered
from treeproof.engine.explain import explain_failures
from treeproof.engine.ledger import Ledger
from treeproof.engine.loss import (
    MALFORMED,
    MOST_REMEMBERED,
    Lost,
    events_of_loss,
    not_checked,
    unexplained,
)
from treeproof.engine.representatives import keep_failures, reduce_failures
from treeproof.engine.run_folder import BackendMeta, RunFolder, append_event
from treeproof.engine.sanitizer import require_sanitizer, sanitize_failures
from treeproof.engine.seat import Seat
from treeproof.engine.settings import RunSettings
from treeproof.engine.store import FailureStore
from treeproof.engine.summary import INTERRUPTED, OWN_FAULT, Run
from treeproof.engine.supply import (
    Drawn,
    Shape,
    Source,
    Supply,
    case_drawn,
    drawn_sources,
    endless_sources,
    read_shapes,
    saved_sources,
    shaped_sources,
)
from treeproof.engine.unchecked import left_events
from treeproof.engine.worker import CHECKER, InternalError
from treeproof.engine.worker_pool import Done, WorkerPool
from treeproof.generate.halves import halves
from treeproof.generate.storage import stored

MOST_LOSSES = 3
"""Workers that one backend may cost a run before it is given up."""


def ignore(event: Event) -> None:
    """Default listener of a run."""


def run(
    settings: RunSettings,
    on_event: Callable[[Event], None] = ignore,
    *,
    cases: Iterable[VerifyCase] | None = None,
    checker: str = CHECKER,
    explain: bool | None = None,
    linger: float = 0.0,
) -> Run:
    """Check the backends of `settings` and return what was found, also where it is cut short.

    `on_event` is called in this thread with each event. `cases` are checked instead of drawn ones.
    `explain`: look for causes, as is done where failures are reduced unless it is given.
    `checker` is the module that holds `check_case` and `CheckOptions`, `linger` as in `WorkerSettings`.
    Raises BackendError, SettingsError or FileError where the run cannot begin; what happens later is in
    the result.
    """
    require_sanitizer(settings)
    folder = new_folder(settings)
    ledger = Ledger.read(settings.ledger, settings.device, datetime.now(UTC).date())
    store = None if settings.store is None else FailureStore(settings.store)
    shapes = [] if cases is not None else read_shapes(settings)
    whole = replace(worker_settings(settings, folder, checker), linger=linger)
    pool = WorkerPool(whole, settings.worker_count)
    try:
        meta = begin(settings, folder, pool, ledger)
        able = tuple(b for b in meta.backends if not b.unavailable)
        capabilities = load_capabilities(able, pool) if cases is None else {}
        sources = _sources(settings, cases, shapes, capabilities)
        endless = endless_sources(settings, capabilities) if settings.endless else None
        saved = store.saved({b.name for b in able}) if store else []
        session = _Session(settings, folder, pool, able, ledger, on_event, checker)
        session.explains = settings.reduce if explain is None else explain
        known = (
            None if settings.store is None else CoverageStore(settings.store, settings.device_kind)
        )
        digests = {b.name: f"{b.source} {b.compiled}" for b in able}
        covered = known.read(digests) if known else {b.name: Covered() for b in able}
        if settings.time_limit is not None and not settings.endless:
            sources = budgeted(sources, covered, settings.time_limit)
        session.check_and_reduce(Supply([*saved_sources(saved), *sources], endless))
    finally:
        pool.stop()
    keep_failures(Run.read(folder.path), store, saved)
    session.sanitize()
    session.keep_coverage(known, digests)
    session.finish()
    return Run.read(folder.path)


def _sources(
    settings: RunSettings,
    cases: Iterable[VerifyCase] | None,
    shapes: Sequence[Shape],
    capabilities: Mapping[str, Capabilities],
) -> list[Source]:
    if cases is not None:
        given = tuple(cases)
        return [Source("given", partial(list, given), size=len(given))]
    if settings.endless:
        return []
    if settings.trees:
        return shaped_sources(shapes, capabilities, settings)
    return drawn_sources(settings, capabilities)


def _taken(drawn: Drawn, backend: BackendMeta) -> VerifyCase:
    """The case as this backend takes it."""
    case = drawn.source.fitted(drawn.case, backend.name)
    return stored(case, backend.cache_layouts if drawn.source.varied else ())


@dataclass
class _Session:
    """A run in progress."""

    settings: RunSettings
    folder: RunFolder
    pool: WorkerPool
    backends: tuple[BackendMeta, ...]
    ledger: Ledger
    on_event: Callable[[Event], None]
    checker: str
    started: float = field(default_factory=time.monotonic)
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Backends that each case was given to."""
    losses: Counter[str] = field(default_factory=Counter)
    """Workers that each backend has cost."""
    probes: dict[str, frozenset[str]] = field(default_factory=dict)
    """What is tried on each case."""
    spared: set[str] = field(default_factory=set)
    """Backends that are handed no malformed selection any more: one has cost a worker."""
    explains: bool = True
    """Causes of failures are looked for."""
    idle_losses: int = 0
    """Workers that ended while they checked nothing."""
    unexplained: int = 0
    """Workers whose end nothing repeated."""
    latest: deque[str] = field(default_factory=deque)
    """Cases of a soak that are over and still on disk."""
    failed: bool = False
    last_begun: bool = False
    """Sources that come last have begun."""
    in_rounds: bool = False
    """The source at hand is one of those."""
    first_verdict: float = 0.0
    last_verdict: float = 0.0
    kept: set[str] = field(default_factory=set)
    """Cases in which something failed."""
    faulty: set[str] = field(default_factory=set)
    """Backends that failed in a single step."""
    exit_code: int | None = None
    """Set where it is not for the checks to decide."""
    reason: str = ""
    """Why the run did less than it could have."""

    @property
    def columns(self) -> tuple[Identity, ...]:
        return tuple(c for c in COLUMNS if c in self.settings.columns)

    def emit(self, event: Event) -> None:
        append_event(self.folder.events_path("run"), event)
        self.on_event(event)

    def check_and_reduce(self, supply: Supply) -> None:
        try:
            if self.backends:
                self.reason = self._check_all(supply)
                for event in left_events(supply, self.backends):
                    self.emit(event)
                if self.settings.reduce:
                    so_far = Run.read(self.folder.path)
                    self._tell("reducing", so_far)
                    reduce_failures(
                        so_far, self.pool, self.backends, self.settings, self.ledger, self.emit
                    )
                if self.explains:
                    self._explain()
        except KeyboardInterrupt:
            self.exit_code, self.reason = INTERRUPTED, "interrupted"
        except InternalError as error:
            self.exit_code, self.reason = OWN_FAULT, str(error)

    def _explain(self) -> None:
        """Causes rest on evidence that only our own checker gathers."""
        if self.checker == CHECKER:
            so_far = Run.read(self.folder.path)
            self._tell("looking for the causes of", so_far)
            explain_failures(so_far, self.pool, self.backends, self.settings, self.emit)

    def sanitize(self) -> None:
        """Once all workers are gone: what is run under it has the GPU to itself."""
        if self.settings.sanitize and self.exit_code is None:
            so_far = Run.read(self.folder.path)
            self._tell("running under compute-sanitizer", so_far)
            try:
                sanitize_failures(so_far, self.settings, self.emit)
            except KeyboardInterrupt:
                self.exit_code, self.reason = INTERRUPTED, "interrupted"

    def _tell(self, does: str, so_far: Run) -> None:
        count = len(so_far.failures)
        if count:
            self.on_event(Began(what=f"{does} {count} failure{'s' if count > 1 else ''}"))

    def keep_coverage(self, known: CoverageStore | None, sources: Mapping[str, str]) -> None:
        if known is None:
            return
        try:
            known.add(sources, Run.read(self.folder.path), ended=self.exit_code is None)
        except OSError as error:  # it costs the next run its order, and this one nothing
            self.reason = "; ".join(filter(None, [self.reason, f"coverage was not kept: {error}"]))

    def finish(self) -> None:
        while self.latest:
            self._drop(self.latest.popleft())
        for event in self.ledger.counts():
            self.emit(event)
        code = self.exit_code
        if code is None:
            code = Run.read(self.folder.path).verdict
        seconds = time.monotonic() - self.started
        checking = self.last_verdict - self.first_verdict
        self.emit(
            Finished(
                exit_code=code,
                seconds=seconds,
                reason=self.reason,
                checking=checking,
                written=self.folder.written(),
            )
        )

    def _check_all(self, supply: Supply) -> str:
        """Check what the supply gives; why the rest was left, empty where nothing was."""
        reason: str | None = None
        exhausted = False
        while True:
            while self.pool.has_room and not exhausted and reason is None:
                reason = self._reason_to_stop(supply)
                drawn = None if reason is not None else supply.next()
                exhausted = drawn is None
                if drawn is not None:
                    if not self.settings.endless:
                        self.on_event(Underway(share=supply.share))
                    self._start(drawn)
            if not self.pool.busy:
                return reason or ""
            for outcome in self.pool.wait():
                self._settle(outcome)

    def _reason_to_stop(self, supply: Supply) -> str | None:
        """None to go on; empty where nothing was left out by stopping."""
        limit = self.settings.time_limit
        if self.settings.fail_fast and self.failed:
            why = "stopped at the first failure"
        elif limit is not None and time.monotonic() - self.started >= limit:
            why = f"stopped at the time limit of {limit:g} s"
        else:
            return None
        if self.settings.endless:
            return why if self.settings.fail_fast and self.failed else ""
        left = f"{why}; {supply.left} of {supply.total} parts of the run were left"
        return left if supply.left else ""

    def _until(self) -> float | None:
        """When no further check of a soak is begun: what it leaves out, nobody asked for."""
        if not self.settings.endless or self.settings.time_limit is None:
            return None
        return time.time() + self.settings.time_limit - (time.monotonic() - self.started)

    def _start(self, drawn: Drawn) -> None:
        if drawn.source.last and not self.in_rounds:
            self._settle_all()
        # A soak, which has scripts all along, waits for the first of them only.
        self.in_rounds = drawn.source.last or (self.in_rounds and self.settings.endless)
        takers: dict[VerifyCase, list[BackendMeta]] = {}
        for backend in self.backends:
            if drawn.source.is_for(backend):
                takers.setdefault(_taken(drawn, backend), []).append(backend)
        for case, backends in (takers or {drawn.case: []}).items():
            self._give(case, backends, drawn)

    def _settle_all(self) -> None:
        """Wait for what is under way, but for other scripts."""
        while self.pool.busy:
            for outcome in self.pool.wait():
                self._settle(outcome)
        self.last_begun = True

    def _give(self, case: VerifyCase, backends: Sequence[BackendMeta], drawn: Drawn) -> None:
        self.folder.write_case(case)
        asked = self.asked.get(case.id)
        if asked is None:
            asked = self.asked[case.id] = set()
            self.probes[case.id] = drawn.source.probes
            self.emit(case_drawn(case, drawn.source.name, drawn.seconds))
        new = tuple(backend for backend in backends if backend.name not in asked)
        asked.update(b.name for b in new)
        self._submit(case, new)

    def _submit(self, case: VerifyCase, backends: tuple[BackendMeta, ...]) -> None:
        able = []
        for backend in backends:
            reason = self._why_not(case, backend)
            if reason:
                cells = not_checked(self.columns, reason)
                self.emit(Checked(case=case.id, backend=backend.name, cells=cells))
            else:
                able.append(backend)
        known = {backend.name: self.ledger.asking(case, backend) for backend in able}
        for spared in (False, True):
            same = tuple(b for b in able if (b.name in self.spared) == spared)
            if same:
                columns, probes = frozenset(self.columns), self._probes(case, same[0])
                self.pool.submit(case, same, columns, self._until(), known, probes)

    def _probes(self, case: VerifyCase, backend: BackendMeta) -> frozenset[str]:
        every = self.probes[case.id]
        return every - {MALFORMED} if backend.name in self.spared else every

    def _why_not(self, case: VerifyCase, backend: BackendMeta) -> str:
        """Why the backend is not launched on this case; empty where it is."""
        if self._given_up(backend):
            return f"given up in this run: it cost {MOST_LOSSES} workers"
        if self.last_begun and case.script and backend.name in self.faulty:
            return "its single steps fail, and rounds are made of them"
        entry = self.ledger.quarantine(case, backend)
        if entry is None:
            return ""
        self.ledger.reached[entry.number] += 1
        return f"quarantined: {entry.reason}"

    def _given_up(self, backend: BackendMeta) -> bool:
        return self.losses[backend.name] >= MOST_LOSSES

    def _forget(self, case: VerifyCase) -> None:
        """A soak keeps the cases on disk that something is to be said of, and for a while the latest: by
        these it is found out who ended a worker."""
        if self.settings.endless:
            self.latest.append(case.id)
            while len(self.latest) > MOST_REMEMBERED:
                self._drop(self.latest.popleft())

    def _drop(self, case_id: str) -> None:
        if case_id not in self.kept:
            self.folder.case_path(case_id).unlink(missing_ok=True)

    def _weigh(self, case: VerifyCase, checked: Checked) -> None:
        """Hold a check against the ledger."""
        backend = next(b for b in self.backends if b.name == checked.backend)
        for event in self.ledger.note(case, backend, checked):
            self.emit(event)
        self.failed |= bool(self.ledger.untolerated(case, backend, checked))
        if checked.failures:
            self.kept.add(case.id)
            if not case.script:
                self.faulty.add(checked.backend)

    def _halve(self, case: VerifyCase, name: str) -> None:
        """Check in two launches what did not fit into memory in one."""
        parts = halves(case)
        if not parts:
            return
        backend = next(b for b in self.backends if b.name == name)
        into = tuple(part.id for part in parts)
        self.emit(Halved(case=case.id, backend=name, requests=len(case.requests), into=into))
        for part in parts:
            source = Source(f"half of {case.id}", list, probes=self.probes[case.id])
            self._give(part, (backend,), Drawn(part, source, 0.0, 0.0))

    def _settle(self, outcome: Done | Lost) -> None:
        if outcome.checks:
            self.last_verdict = time.monotonic()
            self.first_verdict = self.first_verdict or self.last_verdict
        case = outcome.task.case
        for checked in outcome.checks:  # its worker has written them down
            self._take(case, checked, self.on_event)
        if isinstance(outcome, Done):
            self._forget(case)
            return
        over, ended = {checked.backend for checked in outcome.checks}, []
        if not outcome.gave_up:
            ended = self._settle_loss(outcome, over)
        self._submit(case, tuple(b for b in outcome.task.backends if b.name not in over))
        for other in ended:
            self._settle(other)

    def _take(self, case: VerifyCase, checked: Checked, tell: Callable[[Event], None]) -> None:
        self._weigh(case, checked)
        tell(checked)
        if checked.out_of_memory:
            self._halve(case, checked.backend)

    def _settle_loss(self, lost: Lost, over: set[str]) -> list[Done | Lost]:
        """Find out who ended a worker. Adds to `over` whom the case needs no more; returns what else ended
        until its seat was free."""
        seat, ended = self.pool.rest(lost.task.writer)
        try:
            again, guilty = self._repeated(lost, seat)
        except KeyboardInterrupt:  # the loss is told all the same
            self.emit(unexplained(lost))
            raise
        # Where a malformed selection did it, all else that the case has to tell is still to come.
        to_malformed = isinstance(again, Lost) and again.to_malformed
        if lost.at_work is not None and not to_malformed:
            over.add(lost.at_work.name)
        if guilty is not None:
            self._blame(guilty)
        else:
            self.emit(unexplained(lost))
            self.unexplained += 1
            self.idle_losses += lost.at_work is None
        if isinstance(again, Done):
            for checked in again.checks:
                self._take(lost.task.case, checked, self.emit)
        if self.idle_losses > MOST_LOSSES:
            raise InternalError(
                f"{self.idle_losses} workers ended while they checked nothing; "
                f"the last: {lost.detail}"
            )
        return ended

    def _repeated(self, lost: Lost, seat: Seat) -> tuple[Done | Lost | None, Lost | None]:
        """What comes of the check that a worker was at, alone, and who ends a worker like this one."""
        again: Done | Lost | None = None
        if lost.at_work is not None:
            seat.renew()
            again = self._alone(seat, lost.at_work, lost.task.case)
        if isinstance(again, Lost):
            return again, again
        if self.unexplained >= MOST_LOSSES:
            return again, None
        guilty = culprit(lost, self._kept, partial(self._ends, seat))
        seat.renew()
        return again, guilty

    def _blame(self, lost: Lost) -> None:
        assert lost.at_work is not None
        if lost.to_malformed:
            self.spared.add(lost.at_work.name)
        else:
            self.losses[lost.at_work.name] += 1
        event, failed = events_of_loss(lost, self.columns)
        self.emit(event)
        self._take(lost.task.case, failed, self.emit)

    def _ends(self, seat: Seat, name: str, cases: Iterable[VerifyCase]) -> Lost | None:
        """How a fresh process ended over a backend on some cases; None: it did not."""
        backend = next(b for b in self.backends if b.name == name)
        seat.renew()
        outcomes = (self._alone(seat, backend, case) for case in cases)
        return next((one for one in outcomes if isinstance(one, Lost)), None)

    def _alone(self, seat: Seat, backend: BackendMeta, case: VerifyCase) -> Done | Lost:
        """The check, and a moment more, recorded nowhere."""
        outcome = self.pool.ask(
            seat,
            backend,
            case,
            frozenset(self.columns),
            launch_timeout=self.settings.launch_timeout,
            abandoned=threading.Event(),
            probes=self._probes(case, backend),
            known={backend.name: self.ledger.asking(case, backend)},
            linger=LINGER,
        )
        assert outcome is not None
        if isinstance(outcome, Lost) and outcome.at_work is None:
            raise InternalError(f"a worker ended before it could begin: {outcome.detail}")
        return outcome

    def _kept(self, case_id: str) -> VerifyCase | None:
        return self.folder.read_case(case_id) if self.folder.case_path(case_id).exists() else None
