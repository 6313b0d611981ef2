"""All pairs of faults and backends, killed in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from pebble import ProcessExpired, ProcessPool

from treeproof.contract.failure import PROBES
from treeproof.engine.worker import InternalError, initialize
from treeproof.faults.catalog import exactly
from treeproof.scoring.kill import kill
from treeproof.scoring.pairs import Pair
from treeproof.scoring.result import Kill

PAIR_SECONDS = 600.0
"""A pair that takes longer has hung, which a fault that is not called fatal must not."""


def kill_all(
    pairs: Sequence[Pair],
    workers: int,
    *,
    reduced: bool = True,
    diagnosed: bool = False,
    probes: frozenset[str] = frozenset(PROBES),
    smallest_first: bool = False,
    on_kill: Callable[[Kill], None] = lambda found: None,
) -> list[Kill]:
    """Kill every pair; results in the order of the pairs, `on_kill` as they come.

    Faults that are fatal are checked one after another in workers that they may kill. Raises
    InternalError where treeproof itself fails, or a fault kills a process without being called fatal.
    """
    found: dict[int, Kill] = {}
    how: dict[str, Any] = {
        "reduced": reduced,
        "diagnosed": diagnosed,
        "probes": probes,
        "smallest_first": smallest_first,
    }
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
                args=(pairs[i].fault.name, pairs[i].backend, how),
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
            found[i] = kill(pair, **how)
            on_kill(found[i])
    return [found[i] for i in range(len(pairs))]


def _kill_named(fault: str, backend: str, how: dict[str, Any]) -> Kill:
    return kill(Pair(exactly(fault), backend), **how)
