"""Everything a backend does on one case, stage by stage, as evidence for a diagnosis.

A check lets what a build got wrong run on into the stages behind it. Here every stage is given what
a right build would have given it, so that evidence shows the stage at fault and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.registry import Backend
from treeproof.diagnosis.contract import REFUSALS
from treeproof.diagnosis.diagnose import wrong_groups
from treeproof.diagnosis.evidence import Again, Group, Observation
from treeproof.engine.checks.forward import explained_model
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.prepared import prepare
from treeproof.engine.checks.related import first_taken, staged
from treeproof.engine.checks.stale import one_round
from treeproof.engine.checks.trial import Trial
from treeproof.engine.observing.attend import observe_attend
from treeproof.engine.observing.build import observe_build
from treeproof.engine.observing.draft import observe_draft
from treeproof.engine.observing.extend import observe_extend
from treeproof.engine.observing.forward import observe_forward
from treeproof.engine.observing.layers import observe_layers
from treeproof.engine.observing.merge import observe_merge
from treeproof.engine.observing.requests import observe_process, observe_sample
from treeproof.engine.observing.rounds import observe_accept, observe_commit
from treeproof.engine.observing.select import observe_select
from treeproof.generate.related import larger, twin
from treeproof.properties.violation import Violation


def observe(
    case: VerifyCase,
    backend: Backend,
    options: CheckOptions,
    *,
    again: bool = False,
    before: Sequence[VerifyCase] = (),
    later: bool = False,
    layers: bool = False,
) -> Observation | None:
    """What `backend` does on `case`; None where the case is outside its capabilities, or the
    backend cannot run here. `again`: and what it does after other cases on the same object; `before`: after
    each of these. `later`: all of it on an object that has run the first of `before`. `layers`: and what it does
    in those of a small model, where single launches are right."""
    if backend.capabilities.refusal(case, options.device) is not None:
        return None
    trial = Trial(backend, options, prepare(case, options.device, options.leaves))
    found: dict[Group, Any] = {}
    ways = [larger(case), twin(case)] if again else [[one] for one in before]
    try:
        _stages(trial, found, ways, later=later)
        if layers and "attend" not in _wrong(trial, found):
            _of_layers(trial, found)
    except BackendUnavailable:
        return None
    if options.in_flight is not None:
        options.in_flight("oracle")  # what follows is no stage of the backend's
    found["contract"] = _broken(trial)
    return _observation(trial, found)


def _broken(trial: Trial) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (failure.kind, failure.stage, _detail(failure, trial.case))
        for failure in trial.failures
        if failure.identity == "contract"
    )


def _detail(failure: Failure, case: VerifyCase) -> str:
    """Of an exception, whether it says no on purpose; of positions, whether each request has one."""
    one_each = failure.actual == f"({len(case.requests)},)"
    if failure.kind == "wrong-shape" and failure.message.startswith("positions ") and one_each:
        return "positions: one a request"
    if failure.kind != "raises":
        return ""
    _, _, text = failure.message.partition(" raised ")
    return "refusal" if text.partition(":")[0] in REFUSALS else "error"


def _stages(
    trial: Trial, found: dict[Group, Any], ways: Sequence[Iterable[VerifyCase]], *, later: bool
) -> None:
    try:
        trial.instance = trial.call("plan", trial.backend.make)
        for case in [first_taken(trial, ways[0])] if later else []:
            if case is not None:
                one_round(trial, trial.instance, *staged(case, trial.options.device))
    except Violation as violation:
        trial.broke(violation)
        return
    _of_object(trial, found)
    if ways and not later:
        try:
            _again(trial, found, ways)
        except Violation as violation:
            trial.broke(violation)
    close = getattr(trial.instance, "close", None)
    if callable(close):
        try:
            trial.call("close", close)
        except Violation as violation:
            trial.broke(violation)


def _of_object(trial: Trial, found: dict[Group, Any]) -> None:
    """Every stage of the object at hand; one that breaks its contract ends no other."""
    try:
        x = observe_build(trial, found)
    except Violation as violation:
        trial.broke(violation)
        return
    groups: tuple[Callable[[], None], ...] = (
        lambda: observe_attend(trial, x, found),
        lambda: observe_merge(trial, found),
        lambda: observe_accept(trial, x, found),
        lambda: observe_commit(trial, x, found),
        lambda: observe_extend(trial, x, found),
        lambda: observe_sample(trial, x, found),
        lambda: observe_process(trial, x, found),
        lambda: observe_forward(trial, x, found),
        lambda: observe_select(trial, found),
        lambda: observe_draft(trial, found),
    )
    for group in groups:
        try:
            group()
        except Violation as violation:
            trial.broke(violation)


def _of_layers(trial: Trial, found: dict[Group, Any]) -> None:
    try:
        observe_layers(trial, found)
    except Violation as violation:
        trial.broke(violation)


def _again(trial: Trial, found: dict[Group, Any], ways: Sequence[Iterable[VerifyCase]]) -> None:
    """After the first of each that the backend takes, on an object of its own."""
    seen = []
    for cases in ways:
        earlier = first_taken(trial, cases)
        if earlier is None:
            continue
        after = Trial(trial.backend, trial.options, trial.prepared)
        now: dict[Group, Any] = {}
        after.instance = after.call("plan", trial.backend.make)
        one_round(after, after.instance, *staged(earlier, trial.options.device))
        _of_object(after, now)
        now["contract"] = _broken(after)
        seen.append(Again(earlier, now))
    if seen:
        wrong = frozenset(group for one in seen for group in _wrong(trial, one.found))
        found["again"] = tuple(replace(one, wrong=wrong) for one in seen)


def _wrong(trial: Trial, found: Mapping[Group, Any]) -> tuple[Group, ...]:
    return wrong_groups(_observation(trial, found))


def _observation(trial: Trial, found: Mapping[Group, Any]) -> Observation:
    return Observation(
        trial.case,
        found,
        trial.backend.numerics,
        trial.backend.capabilities,
        trial.options.leaves,
        explained_model(trial.instance),
    )
