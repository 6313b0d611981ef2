"""Whether a stage of a round goes by an earlier round: on the script that fails, and on further ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import ValidationError
from msgspec.structs import replace

from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.script import Admit, Prefill, Round, Step, Turn
from treeproof.contract.tree import CandidateTree
from treeproof.diagnosis.diagnose import Diagnosis
from treeproof.diagnosis.earlier_rounds import (
    NAME,
    SAYS,
    StageCall,
    detail,
    earlier_rounds,
    is_wrong,
)
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.check import serve
from treeproof.engine.serving.ends import Refused
from treeproof.engine.serving.recorded import Recorded
from treeproof.engine.serving.step import round_seed
from treeproof.properties.scene import Scene

_SEEDS = 4
_CONFIRMED = 6
"""Further scripts that fail by the stage, after which no more are looked for: what a round emits is few bits, so
that another defect often comes to the same in one."""
_TOGETHER = 6
"""Requests in a round of a longer script, each of which tells something."""
_ROOM = 8
"""Pages more than the failing script has, for each request."""
_CHAIN = (-1, 0, 1)
_ACCEPTED = ((1, 0, 2, 0), (2, 1, 2, 1))
"""Of a chain of three, so that rounds are not alike: after one that emits a single token, and after one that
emits more."""


def earlier_cause(
    case: VerifyCase,
    stage: str,
    calls: Sequence[StageCall],
    backend: Backend,
    options: CheckOptions,
) -> Diagnosis | None:
    """What holds of every call of the stage, here and on further scripts; None where nothing does."""
    left, tried, confirmed = earlier_rounds(stage, calls), 1, 0
    for further in _further(case):
        if not left or confirmed == _CONFIRMED:
            break
        told = _calls(further, stage, backend, options)
        if told is None:
            continue
        tried += 1
        confirmed += is_wrong(stage, told)
        left = [one for one in left if one.holds(told)]
    if not left:
        return None
    return Diagnosis(NAME, SAYS, detail(left), (NAME,), cases_tried=tried)


def _further(case: VerifyCase) -> Iterator[VerifyCase]:
    """Other numbers in the same script; and more rounds, of longer trees that are accepted in part."""
    for turn in range(1, 1 + _SEEDS):
        longer, seed = _longer(case, _ACCEPTED[turn % len(_ACCEPTED)]), round_seed(case, -turn)
        if longer is not None:
            yield replace(longer, seed=seed)
        yield replace(case, seed=seed)


def _longer(case: VerifyCase, accepted: Sequence[int]) -> VerifyCase | None:
    """A limit is reached in the third round, where there is one."""
    params = [step.params for step in case.script if isinstance(step, Admit)]
    numbers = [step.request for step in case.script if isinstance(step, Admit)]
    rules = [step.sample for step in case.script if isinstance(step, Round)]
    tree, rows = CandidateTree(tuple(range(len(_CHAIN))), _CHAIN), tuple(range(len(_CHAIN)))
    requests = tuple(
        replace(case.requests[numbers[b % len(numbers)]], tree=tree, row_of_node=rows, pad_rows=0)
        for b in range(_TOGETHER)
    )
    limit = 1 + sum(1 + accept for accept in accepted[:2]) + 1
    first: list[Step] = []
    for b in range(_TOGETHER):
        asked = params[b % len(params)]
        until = None if asked.limit is None else limit
        first += [Admit(request=b, params=replace(asked, limit=until)), Prefill(request=b)]
    turns = tuple(range(_TOGETHER))
    rounds = [
        Round(turns=tuple(Turn(request=b, accept=accept) for b in turns), sample=rules[-1])
        for accept in accepted
    ]
    page = case.layout.page_size
    room = sum(request.prefix_len for request in requests) // page + _TOGETHER * (
        _ROOM + len(accepted) * len(_CHAIN) // page
    )
    layout = replace(case.layout, num_slots=case.layout.num_slots + room * page)
    try:
        return replace(case, requests=requests, layout=layout, script=(*first, *rounds))
    except (ValueError, ValidationError):
        return None


def _calls(
    case: VerifyCase, stage: str, backend: Backend, options: CheckOptions
) -> list[StageCall] | None:
    """Of a script; None where it cannot be run, or fails by another stage."""
    recorded = Recorded()
    trial = Trial(backend, options, Scene.of(case, options.device), heard=recorded.hear)
    try:
        serve(case, trial, recorded)
    except (Refused, BackendUnavailable):
        return None
    if any(failure.stage != stage for failure in trial.failures):
        return None
    return recorded.calls
