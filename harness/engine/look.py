"""In a worker: one backend looked at on a failing case and on further ones, until there is a cause."""

from __future__ import annotations

import time

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed
from treeproof.diagnosis.diagnose import diagnose
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe

_NOT_OBSERVED = frozenset({"nondeterministic", "reads-undeclared-input", "mutates-input"})
"""Broken contracts that a check finds and an observation does not."""


def look(case: VerifyCase, backend: Backend, options: CheckOptions) -> Diagnosed | None:
    """The cause of what fails on this case; None where no evidence of it is wrong."""
    start = time.perf_counter()
    seen = observe(case, backend, options)
    if seen is None:
        return None
    checked = check_case(case, backend, options)
    seen = seen.with_contract(
        (failure.kind, failure.stage, "")
        for failure in checked.failures
        if failure.identity == "contract" and failure.kind in _NOT_OBSERVED
    )
    found = diagnose(seen, lambda further: observe(further, backend, options))
    if found is None:
        return None
    return Diagnosed(
        backend=backend.name,
        identity="",
        kind="",
        case=case.id,
        cause=found.cause,
        says=found.says,
        detail=found.detail,
        candidates=found.candidates,
        ruled_out=found.ruled_out,
        cases_tried=found.cases_tried,
        seconds=time.perf_counter() - start,
    )
