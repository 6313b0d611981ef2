"""Why a round fails: the statement that explains what the backend does on that round as a case of its own.

First on a fresh object. Where nothing is wrong there, the round is looked at after the one before it, and
after the first, on one object: what is kept from a round is named as it is after any other batch. Last,
an object that has run the round before is looked at as if it were fresh, for what only begins then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.shape import Full
from treeproof.diagnosis.diagnose import UNKNOWN, Diagnosis, diagnose, wrong_groups
from treeproof.diagnosis.evidence import Observation
from treeproof.engine.attribution import behind
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe

_LAST = 3
"""Rounds that are looked at by themselves, the failing one first: what is wrong shows late now and then."""
_ACCEPTED = 2
"""Rows that the round before a further case has accepted: more than the one that every round accepts."""

Look = Callable[[VerifyCase], Observation | None]


def round_cause(
    rounds: Sequence[VerifyCase],
    failure: Failure,
    seed: int,
    backend: Backend,
    options: CheckOptions,
) -> Diagnosis | None:
    """The diagnosis of what `failure` shows; None where no round shows it by itself.

    `rounds` are verify steps, the one under way last. They get one seed, so that their requests keep
    their lines of the token table.
    """
    cases = [replace(case, seed=seed) for case in rounds]
    unexplained: Diagnosis | None = None
    for case, look in _ways(cases, backend, options):
        seen = look(case)
        if seen is None or not _may_show(failure, seen, wrong_groups(seen)):
            continue
        found = diagnose(seen, look)
        if found is not None and found.cause != UNKNOWN:
            return found
        unexplained = unexplained or found
    return unexplained


def _ways(
    cases: Sequence[VerifyCase], backend: Backend, options: CheckOptions
) -> Iterator[tuple[VerifyCase, Look]]:
    """A round, and how it and further cases are looked at."""
    for case in cases[: -_LAST - 1 : -1]:
        for shaped in _kinds(case):
            yield shaped, lambda one: observe(one, backend, options, layers=True)
    for number in range(len(cases) - 1, max(0, len(cases) - _LAST), -1):
        of_kinds = map(_kinds, (cases[number], cases[number - 1], cases[0]))
        for case, last, first in zip(*of_kinds, strict=True):
            before = {case.id: tuple(dict.fromkeys((last, first)))}
            for later in (False, True):
                yield case, partial(_after, before, backend, options, later=later)


def _kinds(case: VerifyCase) -> list[VerifyCase]:
    """As the layers of each kind have it."""
    if case.shape.window is None or case.layout.evicted:
        return [case]
    return [case, replace(case, shape=replace(case.shape, visibility=Full()))]


def _after(
    before: Mapping[str, tuple[VerifyCase, ...]],
    backend: Backend,
    options: CheckOptions,
    case: VerifyCase,
    *,
    later: bool,
) -> Observation | None:
    """The case after what was before it; a further one after a round that may have been before it: the
    same with fewer keys."""
    earlier = before.get(case.id) or (_shorter(case),)
    return observe(case, backend, options, before=earlier, later=later)


def _shorter(case: VerifyCase) -> VerifyCase:
    requests = tuple(
        replace(one, prefix_len=max(0, one.prefix_len - _ACCEPTED), prefix_tokens=())
        for one in case.requests
    )
    shared = min(case.layout.shared_prefix, *(one.prefix_len for one in requests), 1 << 20)
    layout = replace(case.layout, shared_prefix=shared - shared % case.layout.page_size)
    return replace(case, requests=requests, layout=layout)


def _may_show(failure: Failure, seen: Observation, wrong: Sequence[str]) -> bool:
    """Whether what is wrong may be what failed: it is of its stage, or of what is built for that."""
    groups = behind(failure, seen)
    after = {group for one in seen.found.get("again", ()) for group in one.wrong}
    return not groups.isdisjoint(after.union(wrong))
