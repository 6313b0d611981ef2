"""Checking a planted backend: in this process, or, where the fault may kill one, in a worker."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS
from treeproof.contract.registry import BackendError
from treeproof.engine.alone import checking_alone
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.worker import InternalError
from treeproof.scoring.pairs import Pair
from treeproof.scoring.planted_file import planted_file

Ask = Callable[[VerifyCase, frozenset[str], frozenset[str]], Checked]
"""Check a case in these columns by these probes."""

LAUNCH_SECONDS = 3.0
"""For fatal faults: a stage that takes longer counts as hung."""


@contextmanager
def asking(pair: Pair, planted: Backend) -> Iterator[Ask]:
    """Checks of `planted`, the pair's backend with its fault.

    In a worker, which a fatal fault needs, all probes run.
    """
    if pair.fault.fatal:
        with _in_worker(pair) as ask:
            yield ask
        return
    yield lambda case, columns, probes: check_case(
        case, planted, CheckOptions(identities=columns, probes=probes)
    )


@contextmanager
def _in_worker(pair: Pair) -> Iterator[Ask]:
    with tempfile.TemporaryDirectory(prefix="treeproof-") as place:
        file = planted_file(pair.fault.name, pair.backend, Path(place))
        with checking_alone(str(file), launch_timeout=LAUNCH_SECONDS) as check:

            def ask(case: VerifyCase, columns: frozenset[str], probes: frozenset[str]) -> Checked:
                try:
                    return check(case, tuple(c for c in COLUMNS if c in columns))
                except BackendError as error:  # our own faults load; a worker was lost beside them
                    raise InternalError(str(error)) from error

            yield ask
