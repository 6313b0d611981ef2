"""Checking a planted backend: in this process, or, where the fault may kill one, in a worker."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS
from treeproof.contract.registry import load
from treeproof.engine.beginning import load_backends
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.loss import events_of_loss
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.runner import CHECKER
from treeproof.engine.worker import InternalError, WorkerSettings
from treeproof.engine.worker_pool import Done, WorkerPool
from treeproof.scoring.pairs import Pair
from treeproof.scoring.planted_file import planted_file

Ask = Callable[[VerifyCase, frozenset[str], frozenset[str]], Checked | None]
"""Check a case in these columns by these probes; None where there is no verdict."""

LAUNCH_SECONDS = 5.0
"""For fatal faults: a stage that takes longer counts as hung."""


@contextmanager
def asking(pair: Pair) -> Iterator[Ask]:
    """Checks of the backend with the fault planted.

    In a worker, which a fatal fault needs, all probes run.
    """
    if pair.fault.fatal:
        with _in_workers(pair) as ask:
            yield ask
        return
    planted = pair.fault.into(load(pair.backend))
    yield lambda case, columns, probes: check_case(
        case, planted, CheckOptions(identities=columns, probes=probes)
    )


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

            def check(
                case: VerifyCase, identities: frozenset[str], probes: frozenset[str]
            ) -> Checked | None:
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
