"""All pairs of faults and backends, killed in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS
from treeproof.contract.registry import load
from treeproof.engine.beginning import load_backends
from treeproof.engine.loss import events_of_loss
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.runner import CHECKER
from treeproof.engine.worker import InternalError, WorkerSettings, initialize
from treeproof.engine.worker_pool import Done, WorkerPool
from treeproof.faults.catalog import named
from treeproof.scoring.kill import Ask, cases_for, kill, search
from treeproof.scoring.pairs import Pair
from treeproof.scoring.planted_file import planted_file
from treeproof.scoring.result import Kill

PAIR_SECONDS = 600.0
"""A pair that takes longer has hung, which a fault that is not called fatal must not."""
LAUNCH_SECONDS = 5.0
"""For fatal faults: a stage that takes longer counts as hung."""


def kill_all(
    pairs: Sequence[Pair],
    workers: int,
    *,
    reduced: bool = True,
    on_kill: Callable[[Kill], None] = lambda found: None,
) -> list[Kill]:
    """Kill every pair; results in the order of the pairs, `on_kill` as they come.

    Faults that are fatal are checked one after another in workers that they may kill. Raises
    InternalError where treeproof itself fails, or a fault kills a process without being called fatal.
    """
    found: dict[int, Kill] = {}
    harmless = [i for i, pair in enumerate(pairs) if not pair.fault.fatal]
    with ProcessPool(
        max(1, workers),
        initializer=initialize,
        initargs=("cpu",),
        context=multiprocessing.get_context("spawn"),
    ) as pool:
        futures = {
            i: pool.schedule(
                _kill_named,
                args=(pairs[i].fault.name, pairs[i].backend, reduced),
                timeout=PAIR_SECONDS,
            )
            for i in harmless
        }
        for i, future in futures.items():
            where = f"{pairs[i].fault.name} in {pairs[i].backend}"
            try:
                found[i] = future.result()
            except (FutureTimeout, ProcessExpired) as error:
                raise InternalError(f"{where}: {type(error).__name__}: {error}") from error
            on_kill(found[i])
    for i, pair in enumerate(pairs):
        if pair.fault.fatal:
            found[i] = kill_fatal(pair, reduced=reduced)
            on_kill(found[i])
    return [found[i] for i in range(len(pairs))]


def _kill_named(fault: str, backend: str, reduced: bool) -> Kill:
    (only,) = named((fault,))
    return kill(only, backend, reduced=reduced)


def kill_fatal(pair: Pair, *, reduced: bool = True) -> Kill:
    """The same for a fault that hangs or kills: each check in a worker, which may be lost."""
    planted = pair.fault.into(load(pair.backend))
    with _in_workers(pair) as ask:
        return search(pair.fault, pair.backend, ask, cases_for(planted), reduced=reduced)


@contextmanager
def _in_workers(pair: Pair) -> Iterator[Ask]:
    with tempfile.TemporaryDirectory(prefix="treeproof-") as place:
        folder = RunFolder(Path(place))
        folder.make()
        pool = WorkerPool(
            WorkerSettings(folder.path, CHECKER, "cpu", "quick", LAUNCH_SECONDS, watched=True), 1
        )
        try:
            file = planted_file(pair.fault.name, pair.backend, Path(place))
            (meta,) = load_backends((str(file),), pool)
            ask = partial(
                pool.ask,
                pool.seats[0],
                meta,
                launch_timeout=LAUNCH_SECONDS,
                abandoned=threading.Event(),
            )

            def check(case: VerifyCase, identities: frozenset[str]) -> Checked | None:
                outcome = ask(case, identities)
                if outcome is None:
                    return None
                if isinstance(outcome, Done):
                    return outcome.checks[0]
                if outcome.blamed is None:
                    raise InternalError(outcome.detail)
                return events_of_loss(outcome, tuple(c for c in COLUMNS if c in identities))[1]

            yield check
        finally:
            pool.stop()
