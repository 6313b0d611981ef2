"""One fault in one backend: drawn cases until the named check catches it, then the smallest case."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import chain

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, PROBES, Failure
from treeproof.contract.registry import Backend, load
from treeproof.diagnosis.diagnose import UNKNOWN
from treeproof.engine.check import CheckOptions
from treeproof.engine.explain import HANGS, about
from treeproof.engine.look import look
from treeproof.engine.reducer import reduce
from treeproof.faults.fault import Fault
from treeproof.generate.fitting import fitted
from treeproof.generate.profiles import run_seed
from treeproof.generate.script_units import draw_scripts, script_units
from treeproof.generate.units import draw, units
from treeproof.scoring.asking import Ask, asking
from treeproof.scoring.pairs import Pair
from treeproof.scoring.result import Kill, Size

PROFILE = "quick"
_SCRIPTS = 48


@lru_cache(maxsize=1)
def drawn_cases() -> tuple[VerifyCase, ...]:
    """The distinct cases of the profile, in the order a run has them."""
    seed = run_seed(PROFILE, None)
    cases = (case for unit in units(PROFILE, seed) for case in draw(unit))
    return tuple({case.id: case for case in cases}.values())


@lru_cache(maxsize=1)
def drawn_scripts() -> tuple[VerifyCase, ...]:
    """Scripts of the profile, as many as a run of ci has."""
    found = script_units(PROFILE, run_seed(PROFILE, None), _SCRIPTS)
    return tuple(case for unit in found for case in draw_scripts(unit))


def kill(
    pair: Pair,
    *,
    reduced: bool = True,
    diagnosed: bool = False,
    probes: frozenset[str] = frozenset(PROBES),
    smallest_first: bool = False,
) -> Kill:
    """Plant the fault into the backend and look for it, by these probes; perhaps for its cause.

    `smallest_first`: before the drawn cases comes the smallest one known to show it.
    """
    planted = pair.fault.into(load(pair.backend))
    # A fault of one cache layout is looked for where the caches lie so.
    smallest = pair.fault.smallest
    storage, seed = smallest.layout.storage, smallest.seed
    cases = drawn_scripts() if smallest.script else drawn_cases()
    drawn = (
        msgspec.structs.replace(
            c,
            layout=msgspec.structs.replace(c.layout, storage=storage),
            seed=seed if pair.fault.seeded else c.seed,
        )
        for c in chain((smallest,) if smallest_first else (), cases)
    )
    if smallest.script:  # as a run has them
        drawn = (fitted(c, planted.capabilities, "cpu") or c for c in drawn)
    able = (c for c in drawn if planted.capabilities.refusal(c, "cpu") is None)
    with asking(pair, planted) as ask:
        found = search(pair, ask, able, reduced=reduced, probes=probes)
    return _diagnosed(pair, found, planted) if diagnosed and found.case is not None else found


def _diagnosed(pair: Pair, found: Kill, planted: Backend) -> Kill:
    """The cause, as a run would name it on the smallest case."""
    assert found.case is not None
    if pair.fault.fatal:  # that it never came back is all the evidence there is
        return msgspec.structs.replace(found, cause=HANGS, candidates=(HANGS,))
    looked = look(found.case, planted, CheckOptions())
    if not looked:
        return msgspec.structs.replace(found, cause=UNKNOWN)
    seen = about(found.identity, found.kind, looked)
    return msgspec.structs.replace(
        found, cause=seen.cause, candidates=seen.candidates, diagnosis_seconds=seen.seconds
    )


def search(
    pair: Pair,
    ask: Ask,
    cases: Iterable[VerifyCase],
    *,
    reduced: bool,
    probes: frozenset[str] = frozenset(PROBES),
) -> Kill:
    """Ask about one case after another until the check that the fault names catches it."""
    fault = pair.fault
    result = Kill(
        fault=fault.name,
        backend=pair.backend,
        identity=fault.identity,
        evidence=fault.evidence,
        true_cause=fault.cause,
        status="survived",
        known=Size.of(fault.smallest),
    )
    elsewhere: set[str] = set()
    started, count = time.perf_counter(), 0
    for case in cases:
        count += 1
        checked = ask(case, frozenset(COLUMNS), probes)
        seen = {f"{failure.identity} ({failure.evidence})" for failure in checked.failures}
        caught = catches(fault, checked)
        if caught is not None:
            killed = msgspec.structs.replace(
                result,
                status="killed",
                seen=tuple(sorted(seen)),
                cases=count,
                seconds=time.perf_counter() - started,
                probe=caught.probe,
                kind=caught.kind,
                message=caught.message,
                case=case,
            )
            return _reduced(fault, killed, case, ask) if reduced else killed
        elsewhere |= seen
    return msgspec.structs.replace(
        result,
        status="elsewhere" if elsewhere else "survived",
        seen=tuple(sorted(elsewhere)),
        cases=count,
        seconds=time.perf_counter() - started,
    )


def _reduced(fault: Fault, killed: Kill, case: VerifyCase, ask: Ask) -> Kill:
    started = time.perf_counter()
    # Judged in its own column and by that probe alone, which is faster, unless it shows only beside
    # others. By the same probe always: another may look at data of its own, whatever the case.
    everything = frozenset(COLUMNS), frozenset(PROBES)
    alone = frozenset({fault.identity}), frozenset({killed.probe} & set(PROBES))
    failures: dict[str, Failure] = {}

    def fails(how: tuple[frozenset[str], frozenset[str]], smaller: VerifyCase) -> bool:
        seen = catches(fault, ask(smaller, *how), killed.probe)
        if seen is not None:
            failures[smaller.id] = seen
        return seen is not None

    # A fatal fault makes each look take as long as a hang: none more than there must be.
    how = alone if not fault.fatal and fails(alone, case) else everything
    reduction = reduce(case, partial(fails, how))
    last = failures.get(reduction.case.id)
    return msgspec.structs.replace(
        killed,
        reduced=Size.of(reduction.case),
        evaluations=reduction.evaluations,
        reduction_seconds=time.perf_counter() - started,
        minimal=reduction.complete,
        kind=last.kind if last else killed.kind,
        message=last.message if last else killed.message,
        case=reduction.case,
    )


def catches(fault: Fault, checked: Checked, probe: str | None = None) -> Failure | None:
    """The first failure of the check that the fault names, by this probe; None: by any."""
    wanted = fault.identity, fault.evidence
    of_check = (f for f in checked.failures if (f.identity, f.evidence) == wanted)
    return next((f for f in of_check if probe is None or f.probe == probe), None)
