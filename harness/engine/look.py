"""In a worker: one backend looked at on a failing case and on further ones, until there is a cause."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import msgspec

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed, Shown
from treeproof.contract.failure import Failure
from treeproof.diagnosis.apart import Groups
from treeproof.diagnosis.diagnose import UNKNOWN, Diagnosis, diagnose, wrong_groups
from treeproof.diagnosis.evidence import Observation
from treeproof.engine.attribution import Repaired, part_of, suspected
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe
from treeproof.engine.observing.shares import prefix_shares
from treeproof.engine.serving.look import look_script
from treeproof.engine.shown import shown

_NOT_OBSERVED = frozenset({
    "nondeterministic", "not-repeatable", "changes-with-stream", "reads-undeclared-input",
    "mutates-input", "not-refused", "refused-late",
    "not-capturable",
    "captured-lengths", "captured-tables", "captured-mask", "captured-positions", "captured-slots",
    "captured-links", "captured-tokens",
})  # fmt: skip
"""Failures that a check finds and an observation does not."""

_RELATIONS = frozenset({
    "changes-with-row-count", "changes-with-siblings", "changes-with-branch",
    "changes-with-padding", "depends-on-tail",
})  # fmt: skip
"""The same of calls that are compared; whatever else is wrong may show there as well."""

_STALE = "stale"
"""The probe that runs a backend after other cases on the same object."""
_CAPTURED = "captured"
"""The one that plans once and replays on other batches, to which what is kept shows as well."""
_MODEL = "model"
"""The probe that runs it in the layers of a small model."""


def look(case: VerifyCase, backend: Backend, options: CheckOptions) -> tuple[Diagnosed, ...]:
    """The cause of what fails on this case; empty where no evidence of it is wrong.

    First the one cause of everything, `unknown` where there is none, and of no identity and kind;
    then that of each distinct failure, where a backend has several faults.
    """
    return look_and_show(case, backend, options)[0]


def look_and_show(
    case: VerifyCase, backend: Backend, options: CheckOptions
) -> tuple[tuple[Diagnosed, ...], Shown | None]:
    """The same, and what was seen, for pictures of it."""
    if case.script:
        return look_script(case, backend, options)
    start = time.perf_counter()
    checked = check_case(case, backend, options)
    probes = {failure.probe for failure in checked.failures}
    stale = _STALE in probes and probes <= {_STALE, _CAPTURED}
    layers = _MODEL in probes

    def observed(further: VerifyCase) -> Observation | None:
        return observe(further, backend, options, again=stale, layers=layers)

    seen = observed(case)
    if seen is None:
        return (), None
    picture = shown(seen, backend.name)
    beside = _NOT_OBSERVED if wrong_groups(seen) else _NOT_OBSERVED | _RELATIONS
    seen = seen.with_contract(
        (failure.kind, failure.stage, "") for failure in checked.failures if failure.kind in beside
    )
    found = diagnose(seen, observed)
    if picture is not None:
        shares = prefix_shares(case, backend, options)
        picture = msgspec.structs.replace(picture, shares=shares)
    if found is None:
        return (), picture
    whole = _diagnosed(found, backend, case)
    single = _single(checked.failures, seen, found, _repairing(case, backend, options))
    by_failure = [
        msgspec.structs.replace(
            _diagnosed(part, backend, case), identity=failure.identity, kind=failure.kind
        )
        for failure, part in single
    ]
    seconds = time.perf_counter() - start
    causes = (whole, *by_failure)
    return tuple(msgspec.structs.replace(one, seconds=seconds) for one in causes), picture


def _single(
    failures: Sequence[Failure], seen: Observation, found: Diagnosis, repaired: Repaired
) -> Iterator[tuple[Failure, Diagnosis]]:
    """Each distinct failure with what explains it, where that is not the same for all."""
    if not found.parts:
        return
    for failure in {f.key: f for f in reversed(failures)}.values():
        yield failure, part_of(failure, seen, found.parts, repaired) or _open(failure, seen, found)


def _open(failure: Failure, seen: Observation, found: Diagnosis) -> Diagnosis:
    """Unknown, with all ruled out but what may be behind it."""
    suspects = suspected(failure, seen, found.parts)
    names = {name for part in suspects for name in part.candidates}
    tried = dict.fromkeys(name for part in found.parts for name in part.ruled_out)
    ruled_out = tuple(name for name in tried if name not in names)
    return Diagnosis(UNKNOWN, ruled_out=ruled_out, cases_tried=found.cases_tried)


def _repairing(case: VerifyCase, backend: Backend, options: CheckOptions) -> Repaired:
    @cache
    def repaired(groups: Groups) -> Sequence[Failure]:
        return check_case(case, backend, replace(options, repaired=groups)).failures

    return repaired


def _diagnosed(found: Diagnosis, backend: Backend, case: VerifyCase) -> Diagnosed:
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
    )
