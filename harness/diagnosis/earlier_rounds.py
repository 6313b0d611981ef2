"""One statement about rounds: a stage is given, or gives, what an earlier round had in that place; or a first
round was the last one in which it was given anything there.

It is tried on every call of a stage in a script, those that were right among them: each is judged anew as
if it had been given what the statement says. It holds where all of them are right then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

NAME = "of-an-earlier-round"
SAYS = "a stage goes by what an earlier round was given, or gives what that one gave"

Lines = tuple[Any, ...]
"""A value of each line of the batch. Tuples of two rounds need not be equally long."""
Named = Mapping[str, Lines]


@dataclass(frozen=True)
class StageCall:
    """One call of a stage in a round. `requests`: whose each line is, -1 nobody's. `alike`: calls that
    have another are of no account to it.

    `wrong(given)`: the names of what it gave that are wrong if it was given this.
    """

    stage: str
    requests: tuple[int, ...]
    given: Named
    gave: Named
    wrong: Callable[[Named], frozenset[str]]
    alike: int = 0
    nothing: Named = field(default_factory=dict)
    """What some names are where nobody asks for them."""


Whence = Callable[[Sequence[StageCall], int, int], tuple[int, int] | None]
"""The call and line in place of line b of call n; None: its own."""


def _round_before(calls: Sequence[StageCall], n: int, b: int) -> tuple[int, int] | None:
    return (n - 1, b) if n and b < len(calls[n - 1].requests) else None


def _first_round(calls: Sequence[StageCall], n: int, b: int) -> tuple[int, int] | None:
    return (0, b) if n and b < len(calls[0].requests) else None


def _first_of_its_size(calls: Sequence[StageCall], n: int, b: int) -> tuple[int, int] | None:
    sizes = [len(call.requests) for call in calls[: n + 1]]
    return (sizes.index(sizes[n]), b)


def _own_rounds(calls: Sequence[StageCall], n: int, b: int) -> list[tuple[int, int]]:
    number = calls[n].requests[b]
    return [
        (m, call.requests.index(number))
        for m, call in enumerate(calls[:n])
        if number >= 0 and number in call.requests
    ]


def _last_of_request(calls: Sequence[StageCall], n: int, b: int) -> tuple[int, int] | None:
    return next(reversed(_own_rounds(calls, n, b)), None)


def _first_of_request(calls: Sequence[StageCall], n: int, b: int) -> tuple[int, int] | None:
    return next(iter(_own_rounds(calls, n, b)), None)


_WHENCE: Mapping[str, Whence] = {
    "the round before": _round_before,
    "the first round": _first_round,
    "the first round of as many requests": _first_of_its_size,
    "the request's round before": _last_of_request,
    "the request's first round": _first_of_request,
}


_NOBODY = "nobody past the first round"


@dataclass(frozen=True)
class EarlierRound:
    """These names, of what a stage is given or of what it gives, are those of another call."""

    stage: str
    names: tuple[str, ...]
    whence: str
    given: bool

    def holds(self, calls: Sequence[StageCall]) -> bool:
        """Whether every call of the stage is what this says."""
        return all(
            self._of(alike, n) for alike in _groups(self.stage, calls) for n in range(len(alike))
        )

    def _of(self, calls: Sequence[StageCall], n: int) -> bool:
        call = calls[n]
        if self.given:
            told = {name: self._earlier(calls, n, name) for name in self.names}
            return not call.wrong({**call.given, **told})
        if not all(call.gave[name] == self._earlier(calls, n, name) for name in self.names):
            return False
        return call.wrong(call.given) <= frozenset(self.names)

    def _earlier(self, calls: Sequence[StageCall], n: int, name: str) -> Lines:
        if self.whence == _NOBODY:
            return calls[n].nothing[name] if n else calls[n].given[name]

        def side(m: int) -> Lines:
            return calls[m].given[name] if self.given else calls[m].gave[name]

        found = []
        for b, own in enumerate(side(n)):
            place = _WHENCE[self.whence](calls, n, b)
            found.append(own if place is None else _as_far_as(own, side(place[0])[place[1]]))
        return tuple(found)


def _as_far_as(own: Any, earlier: Any) -> Any:
    """An earlier line as long as this one, which it keeps where that had none."""
    if not isinstance(own, tuple):
        return earlier
    return (*earlier[: len(own)], *own[len(earlier) :])


def _groups(stage: str, calls: Sequence[StageCall]) -> list[list[StageCall]]:
    found: dict[int, list[StageCall]] = {}
    for call in calls:
        if call.stage == stage:
            found.setdefault(call.alike, []).append(call)
    return list(found.values())


def is_wrong(stage: str, calls: Sequence[StageCall]) -> bool:
    """Whether a call of the stage is wrong as it stands."""
    return any(call.wrong(call.given) for call in calls if call.stage == stage)


def earlier_rounds(stage: str, calls: Sequence[StageCall]) -> list[EarlierRound]:
    """All that hold of what a stage got wrong; none where it got nothing wrong."""
    if not is_wrong(stage, calls):
        return []
    return [one for one in _statements(stage, calls) if one.holds(calls)]


def _statements(stage: str, calls: Sequence[StageCall]) -> Iterator[EarlierRound]:
    """Single names first, then all that the stage is given, or gives, together."""
    last = next(call for call in reversed(calls) if call.stage == stage)
    for given, named in ((True, last.given), (False, last.gave)):
        together = [tuple(named)] * (len(named) > 1)
        for names in chain(((name,) for name in named), together):
            for whence in _WHENCE:
                yield EarlierRound(stage, names, whence, given)
    for name in last.nothing:
        yield EarlierRound(stage, (name,), _NOBODY, given=True)


def detail(left: Sequence[EarlierRound]) -> str:
    """What is so, by the first of them, and of which rounds it may be."""
    first = left[0]
    places = [one.whence for one in left if (one.names, one.given) == (first.names, first.given)]
    verb, what = "goes by" if first.given else "gives", " and ".join(first.names)
    return f"{first.stage} {verb} the {what} of {' or '.join(places)}"
