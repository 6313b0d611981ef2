"""A failing check held against the causes that the entries of a ledger name.

It is neither reduced nor compared with other hypotheses. The statement of a cause says just what the
backend was seen to do on this very case, or the failure is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, PROBES, Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.diagnosis.apart import Groups
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import MOST_CASES, diagnose, wrong_groups
from treeproof.diagnosis.evidence import Observation
from treeproof.diagnosis.narrowing import Observe
from treeproof.engine.attribution import behind
from treeproof.engine.checks.device_fault import is_device_fault
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe


def traced(
    case: VerifyCase,
    backend: Backend,
    checked: Checked,
    options: CheckOptions,
    entries: Sequence[KnownFailure],
) -> Checked:
    """The same verdicts; failures that the cause of an entry accounts for bear its name.

    The backend is run once more, and only where an entry asks for a cause of what fails.
    """
    causes = dict.fromkeys(
        entry.cause
        for entry in entries
        if entry.cause and any(entry.is_about(failure.key) for failure in checked.failures)
    )
    if not causes:
        return checked
    all_of_it = replace(options, identities=frozenset(COLUMNS), probes=frozenset(PROBES))

    layers = any(failure.probe == "model" for failure in checked.failures)

    def observed(further: VerifyCase) -> Observation | None:
        return observe(further, backend, all_of_it, layers=layers)

    seen = _seen(case, observed)
    wrong = frozenset(wrong_groups(seen)) if seen is not None else frozenset()
    if seen is None or not wrong:
        return checked
    explained = {cause: _explained(cause, seen, observed) for cause in causes}

    def named(failure: Failure) -> Failure:
        asked = (e.cause for e in entries if e.cause and e.is_about(failure.key))
        sources = behind(failure, seen) & wrong
        cause = next((c for c in asked if sources and sources <= explained[c]), "")
        return msgspec.structs.replace(failure, cause=cause) if cause else failure

    return msgspec.structs.replace(checked, failures=tuple(map(named, checked.failures)))


def _seen(case: VerifyCase, observed: Observe) -> Observation | None:
    try:
        return observed(case)
    except RuntimeError as error:
        if not is_device_fault(error):
            raise
        return None  # a kernel's fault that came to light at our own next look at the device


def _explained(cause: str, seen: Observation, observed: Observe) -> Groups:
    """The groups of evidence that the cause reproduces; none where it does not.

    Further cases are run only where this one cannot tell a cause from the same without its condition.
    """
    named = tuple(one for one in HYPOTHESES if one.name == cause)
    for most_cases in (0, MOST_CASES):
        found = diagnose(seen, observed, named, most_cases)
        parts = () if found is None else found.parts or (found,)
        groups = frozenset(g for part in parts if part.cause == cause for g in part.groups)
        if groups:
            return groups
    return frozenset()
