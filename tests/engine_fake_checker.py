"""A checker without torch: a backend's `attend(case)` says itself which (identity, kind) fail, and,
where there is a third word, by which cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, PROBES, Cell, Failure, Identity, Status
from treeproof.contract.registry import Backend


@dataclass(frozen=True)
class CheckOptions:
    device: str = "cpu"
    profile: str = "quick"
    identities: frozenset[str] = frozenset(COLUMNS)
    probes: frozenset[str] = frozenset(PROBES)
    in_flight: Callable[[str], None] | None = None


def check_case(case: VerifyCase, backend: Backend, options: CheckOptions) -> Checked:
    assert options.in_flight is not None
    options.in_flight("attend")
    start = time.perf_counter()
    found: tuple[tuple[Any, ...], ...] = ()
    judged = True
    try:
        found = tuple(backend.make().attend(case))
    except ValueError as error:
        found = (("contract", f"raises-{error}"),)
    except NotImplementedError:  # a backend that gives no evidence; else: a fault of treeproof
        judged = False
    failures = tuple(
        Failure(
            identity=identity,
            kind=kind,
            evidence="measured",
            stage="attend",
            message=f"{kind} on {case.id}",
            request=0,
            row=len(case.requests[0].tree) - 1,
            cause="".join(cause),
        )
        for identity, kind, *cause in found
        if identity in options.identities
    )
    cells = tuple(
        Cell(
            identity=identity,
            evidence="measured",
            stage="attend",
            status=_status(identity, failures) if judged else "not-checked",
        )
        for identity in COLUMNS
        if identity in options.identities
    )
    seconds = {"backend": time.perf_counter() - start}
    return Checked(
        case=case.id,
        backend=backend.name,
        cells=cells,
        failures=failures,
        margin=0.25,
        seconds=seconds,
    )


def _status(identity: Identity, failures: tuple[Failure, ...]) -> Status:
    return "fail" if any(f.identity == identity for f in failures) else "pass"
