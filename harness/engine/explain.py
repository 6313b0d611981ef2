"""The cause of each distinct failure, found after reduction on its smallest case.

A worker runs the backend on that case and on a few further ones; failures of one backend on one case
are explained together.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import msgspec

from treeproof.contract.event import Diagnosed, Event
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.seat import Seat
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.engine.worker import InternalError
from treeproof.engine.worker_pool import WorkerPool

ALL_SECONDS = 60.0
"""Time for all failures of a run; what is not explained by then stays so."""
LAUNCH_SECONDS = 10.0
"""A stage that takes longer on a further case counts as hung, and the cause is not found."""
HANGS = "hangs"


def explain_failures(
    run: Run,
    pool: WorkerPool,
    backends: Sequence[BackendMeta],
    settings: RunSettings,
    emit: Callable[[Event], None],
) -> None:
    """Emit a `Diagnosed` for each failure whose evidence could be gathered, and what was seen.

    Raises InternalError, after all of them, where treeproof itself failed.
    """
    by_name = {backend.name: backend for backend in backends}
    own_faults: list[InternalError] = []
    over = threading.Event()
    deadline = time.monotonic() + ALL_SECONDS
    seats: queue.SimpleQueue[Seat] = queue.SimpleQueue()
    for seat in pool.seats:
        seats.put(seat)

    def work(alike: Sequence[FailureGroup]) -> list[Event]:
        first = alike[0]
        if first.failure.severity == "hang":
            return [_hangs(group) for group in alike]
        if first.failure.severity == "crash" or time.monotonic() > deadline:
            return []
        seat = seats.get()
        try:
            found, picture = pool.diagnose(
                seat,
                by_name[first.backend],
                run.folder.read_case(first.case),
                launch_timeout=min(settings.launch_timeout, LAUNCH_SECONDS),
                abandoned=over,
            )
        except InternalError as error:
            own_faults.append(error)
            return []
        finally:
            seats.put(seat)
        events: list[Event] = [] if picture is None else [picture]
        if found:
            events += [about(group.identity, group.kind, found) for group in alike]
        return events

    together = _together(run.failures)
    with ThreadPoolExecutor(len(pool.seats)) if len(pool.seats) > 1 else nullcontext() as threads:
        try:
            for found in threads.map(work, together) if threads else map(work, together):
                for event in found:
                    emit(event)
        finally:
            over.set()
    if own_faults:
        raise own_faults[0]


def _together(groups: Sequence[FailureGroup]) -> list[list[FailureGroup]]:
    """Failures of one backend on one case, and of one severity: one look explains them all."""
    found: dict[tuple[str, str, str], list[FailureGroup]] = {}
    for group in groups:
        place = (group.backend, group.case, group.failure.severity)
        found.setdefault(place, []).append(group)
    return list(found.values())


def about(identity: str, kind: str, found: Sequence[Diagnosed]) -> Diagnosed:
    """The cause of one failure, out of what `look` gives."""
    own = (one for one in found if (one.identity, one.kind) == (identity, kind))
    return msgspec.structs.replace(next(own, found[0]), identity=identity, kind=kind)


def _hangs(group: FailureGroup) -> Diagnosed:
    """No evidence is needed: that it never came back is what was seen."""
    return Diagnosed(
        backend=group.backend,
        identity=group.identity,
        kind=group.kind,
        case=group.case,
        cause=HANGS,
        says="a stage does not come back",
        candidates=(HANGS,),
    )
