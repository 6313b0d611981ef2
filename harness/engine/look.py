"""In a worker: one backend looked at on a failing case and on further ones, until there is a cause."""

from __future__ import annotations

import time

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed
from treeproof.diagnosis.diagnose import diagnose, wrong_groups
from treeproof.diagnosis.evidence import Observation
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe

_NOT_OBSERVED = frozenset({
    "nondeterministic", "not-repeatable", "changes-with-stream", "reads-undeclared-input",
    "mutates-input", "depends-on-tail",
})  # fmt: skip
"""Failures that a check finds and an observation does not."""

_RELATIONS = frozenset({
    "changes-with-row-count", "changes-with-siblings", "changes-with-branch",
    "changes-with-padding",
})  # fmt: skip
"""The same of launches that are compared; whatever else is wrong may show there as well."""

_STALE = "stale"
"""The probe that runs a backend after other cases on the same object."""


def look(case: VerifyCase, backend: Backend, options: CheckOptions) -> Diagnosed | None:
    """The cause of what fails on this case; None where no evidence of it is wrong."""
    start = time.perf_counter()
    checked = check_case(case, backend, options)
    stale = bool(checked.failures) and all(f.probe == _STALE for f in checked.failures)

    def observed(further: VerifyCase) -> Observation | None:
        return observe(further, backend, options, again=stale)

    seen = observed(case)
    if seen is None:
        return None
    beside = _NOT_OBSERVED if wrong_groups(seen) else _NOT_OBSERVED | _RELATIONS
    seen = seen.with_contract(
        (failure.kind, failure.stage, "") for failure in checked.failures if failure.kind in beside
    )
    found = diagnose(seen, observed)
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
