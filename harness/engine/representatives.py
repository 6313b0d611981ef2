"""One case a distinct failure: reduced, judged once more, and kept as a reproducer."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from msgspec import ValidationError

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked, Event, Reduced
from treeproof.contract.failure import COLUMNS, PROBES
from treeproof.contract.wire import FailureKey, FileError, Reproducer
from treeproof.engine import simplify
from treeproof.engine.blame import LINGER
from treeproof.engine.completed import REDUCED_UNIT
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.gpus import anywhere
from treeproof.engine.ledger import Ledger
from treeproof.engine.loss import Lost, events_of_loss
from treeproof.engine.reducer import reduce
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.seat import Seat
from treeproof.engine.settings import RunSettings
from treeproof.engine.store import FailureStore, Saved
from treeproof.engine.summary import Run
from treeproof.engine.supply import case_drawn
from treeproof.engine.worker import AFTERWARDS, InternalError
from treeproof.engine.worker_pool import Done, Known, WorkerPool

KEY_SECONDS, ALL_SECONDS = 60.0, 180.0
"""Time for one failure, and for all of them; what is not reduced by then is kept as it is."""
_NEAR = 256
"""Prefixes of twice this length are first tried at it, and at what is left over of it."""
LAUNCH_SECONDS = 10.0
"""A reduced case that takes longer counts as hung."""

Ask = Callable[[VerifyCase, frozenset[str], frozenset[str]], Done | Lost | None]
"""Check a case in these columns by these probes; None once the reduction is abandoned."""

_EVERY_PROBE = frozenset(PROBES)


@dataclass(frozen=True)
class _Smallest:
    event: Reduced
    case: VerifyCase
    checked: Checked | None
    """Its verdicts in all columns; None where the case is the one that was drawn."""


def reduce_failures(
    run: Run,
    pool: WorkerPool,
    backends: Sequence[BackendMeta],
    settings: RunSettings,
    ledger: Ledger,
    emit: Callable[[Event], None],
) -> None:
    """Reduce the smallest case of each distinct failure, on all workers at once.

    Raises InternalError, after all of them, where treeproof itself failed on a smaller case.
    """
    by_name = {backend.name: backend for backend in backends}
    columns = frozenset(settings.columns)
    known = {(check.case, check.backend) for check in run.checks}
    own_faults: list[InternalError] = []
    over = threading.Event()
    deadline = time.monotonic() + ALL_SECONDS
    seats: queue.SimpleQueue[Seat] = queue.SimpleQueue()
    for seat in pool.seats:
        seats.put(seat)

    def work(group: FailureGroup) -> _Smallest:
        seat = seats.get()
        try:
            backend = by_name[group.backend]
            launch = _for_trials(partial(pool.ask, seat, backend, abandoned=over), group, settings)
            ask = _with_ledger(launch, ledger, backend)
            alike = partial(_fails_alike, group, ledger, backend)
            trial = _Trial(group, ask, alike, columns, deadline, own_faults)
            return trial.smallest(run.folder.read_case(group.case))
        finally:
            seats.put(seat)

    # One worker needs no threads, and a debugger is better off without.
    with ThreadPoolExecutor(len(pool.seats)) if len(pool.seats) > 1 else nullcontext() as threads:
        try:
            for found in threads.map(work, run.failures) if threads else map(work, run.failures):
                _record(run, found, known, emit)
        finally:
            over.set()
    if own_faults:
        raise own_faults[0]


def _for_trials(
    ask: Callable[..., Done | Lost | None], group: FailureGroup, settings: RunSettings
) -> Callable[..., Done | Lost | None]:
    def asked(
        case: VerifyCase, identities: frozenset[str], probes: frozenset[str], known: Known
    ) -> Done | Lost | None:
        return ask(
            case,
            identities,
            probes=probes,
            known=known,
            launch_timeout=min(settings.launch_timeout, LAUNCH_SECONDS),
            expendable=group.failure.severity != "wrong" and settings.device_kind == "cpu",
            linger=LINGER if group.failure.stage == AFTERWARDS else 0.0,
        )

    return asked


def _with_ledger(
    ask: Callable[..., Done | Lost | None], ledger: Ledger, backend: BackendMeta
) -> Ask:
    """Nothing that is quarantined is launched, and what has a known cause is told by it."""

    def asked(
        case: VerifyCase, identities: frozenset[str], probes: frozenset[str]
    ) -> Done | Lost | None:
        if ledger.quarantine(case, backend):
            return None
        return ask(case, identities, probes, {backend.name: ledger.asking(case, backend)})

    return asked


def _fails_alike(
    group: FailureGroup, ledger: Ledger, backend: BackendMeta, case: VerifyCase, checked: Checked
) -> bool:
    """Whether it is this failure, and none that the ledger knows: another fault may look like it."""
    untolerated = ledger.untolerated(case, backend, checked)
    return (group.identity, group.kind) in {failure.key for failure in untolerated}


def _record(
    run: Run, found: _Smallest, known: set[tuple[str, str]], emit: Callable[[Event], None]
) -> None:
    place = (found.case.id, found.event.backend)
    if found.checked is not None and place not in known:
        known.add(place)
        run.folder.write_case(found.case)
        emit(case_drawn(found.case, REDUCED_UNIT))
        emit(found.checked)
    emit(found.event)


class _Trial:
    """Trying smaller cases for one failure, until its time is over."""

    def __init__(
        self,
        group: FailureGroup,
        ask: Ask,
        alike: Callable[[VerifyCase, Checked], bool],
        columns: frozenset[str],
        deadline: float,
        own_faults: list[InternalError],
    ) -> None:
        self._group = group
        self._ask = ask
        self._alike = alike
        self._columns = columns
        self._own_faults = own_faults
        self._started = time.monotonic()
        self._deadline = min(deadline, self._started + KEY_SECONDS)
        self._evaluations = 0
        self._ran_out = False

    def smallest(self, case: VerifyCase) -> _Smallest:
        """The smallest case that fails so; the given one where none does, or not even it again."""
        smallest, checked, complete = case, None, False
        for start, how in itertools.product(_starts(case), self._ways()):
            if self._fails(start, *how):
                reduction = reduce(start, lambda smaller: self._fails(smaller, *how))
                smallest, complete = reduction.case, reduction.complete and not self._ran_out
                break
        if smallest != case:
            checked = self._check(smallest, self._columns, _EVERY_PROBE)
            if checked is None or not self._alike(smallest, checked):
                smallest, checked, complete = case, None, False
        event = Reduced(
            backend=self._group.backend,
            identity=self._group.identity,
            kind=self._group.kind,
            original=case.id,
            reduced=smallest.id,
            evaluations=self._evaluations,
            seconds=time.monotonic() - self._started,
            complete=complete,
        )
        return _Smallest(event, smallest, checked)

    def _ways(self) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
        """Columns and probes to judge by: the failure's own first, which is faster by far; some
        failures show only beside others."""
        own = frozenset({self._group.identity})
        yield own, _EVERY_PROBE & {self._group.failure.probe}
        yield own, _EVERY_PROBE
        yield self._columns, _EVERY_PROBE

    def _fails(self, case: VerifyCase, identities: frozenset[str], probes: frozenset[str]) -> bool:
        """Whether it fails with the same key; False, unseen, once the time is over."""
        if time.monotonic() > self._deadline:
            self._ran_out = True
            return False
        self._evaluations += 1
        checked = self._check(case, identities, probes)
        return checked is not None and self._alike(case, checked)

    def _check(
        self, case: VerifyCase, identities: frozenset[str], probes: frozenset[str]
    ) -> Checked | None:
        try:
            outcome = self._ask(case, identities, probes)
        except InternalError as error:
            self._own_faults.append(error)
            return None
        if isinstance(outcome, Done):
            return outcome.checks[0] if outcome.checks else None
        if outcome is None or outcome.at_work is None:
            return None
        return events_of_loss(outcome, tuple(c for c in COLUMNS if c in identities))[1]


def _starts(case: VerifyCase) -> Iterator[VerifyCase]:
    """The case, and before it one that costs a hundredth where prefixes are far: just to see such a
    failure again may take a minute. Where a prefix ends in its page stays as it was."""

    def shortened(request: Request) -> Request:
        if request.prefix_len < 2 * _NEAR:
            return request
        return simplify.with_prefix(request, _NEAR + request.prefix_len % _NEAR)

    with suppress(ValueError, ValidationError):
        near = simplify.each_request(case, shortened)
        if near != case:
            yield near
    yield case


def keep_failures(run: Run, store: FailureStore | None, saved: Sequence[Saved]) -> None:
    """Write a reproducer for each distinct failure, into the run's folder and into the store.

    Saved failures that were seen to pass are dropped from the store.
    """
    for group in run.failures:
        reproducer = reproducer_of(run, group)
        run.folder.write_reproducer(group.backend, reproducer)
        if store is not None:
            store.save(group.backend, reproducer)
    if store is not None:
        _drop_fixed(run, store, saved)


def keep_missing(run: Run) -> list[str]:
    """Write a reproducer for each distinct failure that has none: of a union, or of a run that was cut
    short. Where there can be none, why. Raises OSError where it cannot be written."""
    lost = []
    for group in run.failures:
        if group.reproducer is not None:
            continue
        try:
            run.folder.write_reproducer(group.backend, reproducer_of(run, group))
        except FileError as error:
            lost.append(f"no file to replay {group.backend} {group.identity} {group.kind}: {error}")
    return lost


def reproducer_of(run: Run, group: FailureGroup) -> Reproducer:
    """A failure with its case. Raises FileError where that does not read."""
    return Reproducer(
        case=run.folder.read_case(group.case),
        backend=next(b.reference for b in run.meta.backends if b.name == group.backend),
        failure=FailureKey(identity=group.identity, kind=group.kind),
        message=group.failure.message,
        seed=run.meta.seed,
        device=anywhere(run.meta.device),
        versions=run.meta.versions,
    )


def _drop_fixed(run: Run, store: FailureStore, saved: Sequence[Saved]) -> None:
    checks = {(check.case, check.backend): check for check in run.checks}
    failing = {group.key for group in run.failures}
    for kept in saved:
        key = kept.reproducer.failure
        checked = checks.get((kept.reproducer.case.id, kept.backend))
        # Where another case fails in the same way, the store has just been given that one.
        replaced = (kept.backend, key.identity, key.kind) in failing
        if checked is not None and kept.passes(checked) and not replaced:
            store.drop(kept)
