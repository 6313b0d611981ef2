"""One fault in one backend: drawn cases until the named check catches it, then the smallest case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS
from treeproof.contract.registry import Backend, load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.reducer import reduce
from treeproof.faults.fault import Fault
from treeproof.generate.units import draw, units
from treeproof.scoring.result import Kill, Size

PROFILE = "quick"

Ask = Callable[[VerifyCase, frozenset[str]], Checked | None]
"""Check a case in these columns; None where there is no verdict."""


@lru_cache(maxsize=1)
def drawn_cases() -> tuple[VerifyCase, ...]:
    """The distinct cases of the profile, in the order a run has them."""
    from treeproof.generate.profiles import run_seed

    seed = run_seed(PROFILE, None)
    cases = (case for unit in units(PROFILE, seed) for case in draw(unit))
    return tuple({case.id: case for case in cases}.values())


def kill(fault: Fault, backend: str, *, reduced: bool = True) -> Kill:
    """Plant the fault into the backend of this name and look for it, in this process."""
    planted = fault.into(load(backend))
    return search(fault, backend, asking(planted), cases_for(planted), reduced=reduced)


def asking(planted: Backend) -> Ask:
    def ask(case: VerifyCase, identities: frozenset[str]) -> Checked:
        return check_case(case, planted, CheckOptions(identities=identities))

    return ask


def cases_for(planted: Backend) -> list[VerifyCase]:
    return [case for case in drawn_cases() if planted.capabilities.refusal(case, "cpu") is None]


def search(
    fault: Fault, backend: str, ask: Ask, cases: Iterable[VerifyCase], *, reduced: bool
) -> Kill:
    """Ask about one case after another until the check that the fault names catches it."""
    result = Kill(
        fault=fault.name,
        backend=backend,
        identity=fault.identity,
        evidence=fault.evidence,
        status="survived",
        known=Size.of(fault.smallest),
    )
    elsewhere: set[str] = set()
    started, count = time.perf_counter(), 0
    for case in cases:
        count += 1
        checked = ask(case, frozenset(COLUMNS))
        failures = checked.failures if checked else ()
        seen = {f"{failure.identity} ({failure.evidence})" for failure in failures}
        caught = [
            f for f in failures if (f.identity, f.evidence) == (fault.identity, fault.evidence)
        ]
        if caught:
            killed = msgspec.structs.replace(
                result,
                status="killed",
                seen=tuple(sorted(seen)),
                cases=count,
                seconds=time.perf_counter() - started,
                message=caught[0].message,
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
    # Judged in its own column, which is faster, unless it shows only beside others.
    alone = frozenset({fault.identity})
    columns = alone if _catches(fault, ask(case, alone)) else frozenset(COLUMNS)
    reduction = reduce(case, lambda smaller: _catches(fault, ask(smaller, columns)))
    return msgspec.structs.replace(
        killed,
        reduced=Size.of(reduction.case),
        evaluations=reduction.evaluations,
        reduction_seconds=time.perf_counter() - started,
        minimal=reduction.complete,
        case=reduction.case,
    )


def _catches(fault: Fault, checked: Checked | None) -> bool:
    return checked is not None and any(
        (f.identity, f.evidence) == (fault.identity, fault.evidence) for f in checked.failures
    )
