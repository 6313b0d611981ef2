"""What a run with a time limit begins with, so that what it leaves is what matters least.

First backends whose source has changed since a run last got through all of them, then the event classes
that a backend was least checked on, from run to run; what is drawn is the same in any order.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

from treeproof.engine.coverage import Covered
from treeproof.engine.supply import Source
from treeproof.generate.tags import tags

SHARE_FOR_DRAWING = 0.1
"""Of the time of a run: event classes of a part are known once its cases are drawn. Parts that are not
drawn by then come after those that are, in their own order."""


@dataclass(frozen=True)
class _Part:
    """A source for some backends. `classes` of each backend are event classes and how many of the cases
    that it gets fall in each; None while unknown."""

    source: Source
    backends: frozenset[str]
    classes: Mapping[str, Counter[str]] | None


def budgeted(
    sources: Sequence[Source], covered: Mapping[str, Covered], seconds: float
) -> list[Source]:
    """The sources in the order in which a run of so many `seconds` takes them, each drawn where there
    was time for it. `covered` has every backend of the run.

    A source for changed backends and others comes twice, once for each. One part for each of the others
    comes second: what a store knows must not leave a backend without any verdict.
    """
    changed = {name for name, known in covered.items() if not known.whole}
    parts = _drawn(sources, frozenset(covered), seconds * SHARE_FOR_DRAWING)
    counts = {name: Counter(known.tags) for name, known in covered.items()}
    first, others = (
        _least_covered_first([p for p in map(partial(_for, group), parts) if p.backends], counts)
        for group in (changed, covered.keys() - changed)
    )
    look = _one_for_each(others)
    rest = [source for i, source in enumerate(others) if i not in look]
    return [*first[:1], *(others[i] for i in look), *first[1:], *rest]


def _one_for_each(sources: Sequence[Source]) -> list[int]:
    """The first source of each backend, by its place."""
    places: dict[str, int] = {}
    for i, source in enumerate(sources):
        for name in source.backends or ():
            places.setdefault(name, i)
    return sorted(set(places.values()))


def _drawn(sources: Iterable[Source], everyone: frozenset[str], seconds: float) -> list[_Part]:
    end = time.monotonic() + seconds
    parts = []
    for source in sources:
        backends = everyone if source.backends is None else source.backends
        if time.monotonic() > end:
            parts.append(_Part(source, backends, None))
            continue
        start = time.perf_counter()
        cases = tuple(source.draw())
        took = time.perf_counter() - start
        known = replace(source, cases=cases, size=len(cases), seconds=took)
        same = Counter(tag for case in cases for tag in tags(case))
        found = {
            name: same
            if source.fit is None
            else Counter(tag for case in cases for tag in tags(source.fit(case, name)))
            for name in backends
        }
        parts.append(_Part(known, backends, found))
    return parts


def _for(group: AbstractSet[str], part: _Part) -> _Part:
    """The part for those of its backends that are of a group, at their share of its cost."""
    own, source = part.backends & group, part.source
    share = len(own) / max(1, len(part.backends))
    mine = replace(source, backends=own, cost=source.cost * share, seconds=source.seconds * share)
    return replace(part, source=mine, backends=own)


def _least_covered_first(
    parts: Sequence[_Part], counts: Mapping[str, Counter[str]]
) -> list[Source]:
    """Again and again the part with the class that one of its backends was least checked on; of those
    the one with most such classes. Sources that come last do; those that come first keep their order, in
    which kinds of launches follow one another. Adds to `counts` as if all were checked.
    """

    def key(i: int) -> tuple[int, int, int, int]:
        part = parts[i]
        if part.source.first:
            return _rank(part.source), 0, 0, i
        found = Counter(
            counts[name][tag]
            for name in part.backends
            for tag in (part.classes or {}).get(name, ())
        )
        least = min(found, default=0)
        return _rank(part.source), least, -found[least], i

    known = [i for i, part in enumerate(parts) if part.classes is not None]
    waiting = [key(i) for i in known]
    heapq.heapify(waiting)
    ordered = []
    while waiting:
        said = heapq.heappop(waiting)
        i = said[-1]
        now = key(i)
        if now != said:  # counts only grow, and so do keys: it is put back where it belongs
            heapq.heappush(waiting, now)
            continue
        ordered.append(parts[i].source)
        for name in parts[i].backends:
            counts[name].update((parts[i].classes or {}).get(name, ()))
    unknown = [part.source for part in parts if part.classes is None]
    return sorted([*ordered, *unknown], key=_rank)


def _rank(source: Source) -> int:
    return 0 if source.first else 2 if source.last else 1
