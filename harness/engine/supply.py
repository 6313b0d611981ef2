"""Where the cases of a run come from: saved failures first, then given shapes or drawn units."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treeproof.contract.canonical import content_id
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import CaseDrawn
from treeproof.contract.failure import ATTENTION, PROBES
from treeproof.engine.completed import SAVED
from treeproof.engine.levelled import Width, by_width, levelled
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.settings import RunSettings
from treeproof.engine.shards import share
from treeproof.engine.store import Saved

if TYPE_CHECKING:
    from treeproof.generate.bulk import BulkUnit
    from treeproof.generate.units import WorkUnit


CASES_A_SCRIPT = 18
"""A script takes about as long as so many cases of one step."""


@dataclass(frozen=True)
class Source:
    """Some cases, made when they are needed; for these backends only, None for all."""

    name: str
    draw: Callable[[], Sequence[VerifyCase]]
    backends: frozenset[str] | None = None
    varied: bool = False
    """Each backend gets the cases in one of the cache layouts that it takes."""
    cost: float = 1.0
    """Of all its cases, beside those of other sources."""
    probes: frozenset[str] = frozenset(PROBES)
    """What is tried on them; of attention alone, backends that attend get them."""
    fit: Callable[[VerifyCase, str], VerifyCase] | None = None
    """What a backend gets in place of a case that is drawn; None: that case."""
    last: bool = False
    """Only once all cases before have been settled, and only for backends that pass them."""
    first: bool = False
    """Before all others: most trees in the least time."""
    size: int = 1
    """Cases that it draws, as many as are asked of it: some may turn out to be one case."""
    cases: tuple[VerifyCase, ...] | None = None
    """Where they were drawn before its turn."""
    seconds: float = 0.0
    """The time that took."""

    def is_for(self, backend: BackendMeta) -> bool:
        """Whether the backend gets its cases."""
        attends = "attend" in backend.stages or self.probes != ATTENTION
        return attends and (not self.backends or backend.name in self.backends)

    def fitted(self, case: VerifyCase, backend: str) -> VerifyCase:
        """What a backend gets in place of one of its cases."""
        return case if self.fit is None else self.fit(case, backend)


@dataclass(frozen=True)
class Drawn:
    """A case that a source gave, the seconds it took to make, and its part of the source's cost."""

    case: VerifyCase
    source: Source
    seconds: float
    cost: float


class Supply:
    """The cases of all sources, one after another, each source drawn only when it is its turn."""

    def __init__(self, sources: Iterable[Source], endless: Iterator[Source] | None = None) -> None:
        """`endless` sources follow the others and are counted nowhere."""
        self._sources = deque(sources)
        self._endless = endless or iter(())
        self._drawn: deque[Drawn] = deque()
        self.total = len(self._sources)
        self._cost = sum(source.cost for source in self._sources)
        self._begun = 0.0
        """Cost of the cases that were given away."""

    @property
    def left(self) -> int:
        """Sources not used up; endless ones do not count."""
        return len(self._sources) + bool(self._drawn)

    def next(self) -> Drawn | None:
        """The next case, or None where there is no other."""
        while not self._drawn:
            source = self._sources.popleft() if self._sources else next(self._endless, None)
            if source is None:
                return None
            start = time.perf_counter()
            cases = source.draw() if source.cases is None else source.cases
            seconds = (time.perf_counter() - start + source.seconds) / max(1, len(cases))
            each = source.cost / max(1, len(cases))
            self._drawn.extend(Drawn(case, source, seconds, each) for case in cases)
            self._begun += source.cost if not cases else 0.0
        drawn = self._drawn.popleft()
        self._begun += drawn.cost
        return drawn

    def unchecked(self) -> Iterator[tuple[Source, int, Sequence[VerifyCase]]]:
        """Of each source that is not used up: how many cases are left, and those that are drawn."""
        if self._drawn:
            yield self._drawn[0].source, len(self._drawn), [drawn.case for drawn in self._drawn]
        for source in self._sources:
            yield source, source.size, source.cases or ()

    @property
    def share(self) -> float:
        """How much of what the sources cost has been given away, from 0 to 1; endless ones apart."""
        return min(1.0, self._begun / self._cost) if self._cost else 1.0


def saved_sources(saved: Iterable[Saved]) -> list[Source]:
    return [
        Source(f"{SAVED}{s.backend}", partial(_just, s.reproducer.case), frozenset({s.backend}))
        for s in saved
    ]


def _just(case: VerifyCase) -> list[VerifyCase]:
    return [case]


def drawn_sources(settings: RunSettings, able: Mapping[str, Capabilities]) -> list[Source]:
    """The work units of a profile, whatever the number of workers."""
    from treeproof.generate.units import units

    drawn = units(settings.profile, settings.seed, settings.examples, settings.dtype)
    own = share(drawn, settings.shard, lambda unit: unit.cost, lambda unit: unit.shape.name)
    single = [source for unit in own for source in _unit_sources(unit, able)]
    count = sum(unit.count for unit in drawn)
    return [
        *_bulk_sources(settings, count, able),
        *single,
        *_script_sources(settings, count, able),
    ]


def _bulk_sources(
    settings: RunSettings, cases: int, able: Mapping[str, Capabilities]
) -> list[Source]:
    """Cases of many requests, where a launch takes as long with one: each fitted to who gets it."""
    from treeproof.generate.bulk import PROFILE, bulk_units

    if settings.profile != PROFILE or settings.device_kind == "cpu":
        return []
    drawn = bulk_units(settings.profile, settings.seed, cases, settings.dtype)
    own = share(drawn, settings.shard, lambda unit: 1.0, lambda unit: unit.name)
    return [source for unit in own for source in _fitted_sources(unit, settings, able)]


def _fitted_sources(
    unit: BulkUnit, settings: RunSettings, able: Mapping[str, Capabilities]
) -> list[Source]:
    from treeproof.generate.bulk import draw_bulk
    from treeproof.generate.fitting import fitted

    takers: dict[VerifyCase, set[str]] = {}
    drawn = draw_bulk(unit)
    for width, names in by_width(able).items():
        for name in able if names is None else names:
            fit = fitted(levelled(drawn, width), able[name], settings.device, settings.dtype)
            if fit is not None:
                takers.setdefault(fit, set()).add(name)
    return [
        Source(unit.name, partial(_just, case), frozenset(names), probes=ATTENTION, first=True)
        for case, names in takers.items()
    ]


def _script_sources(
    settings: RunSettings, cases: int, able: Mapping[str, Capabilities]
) -> list[Source]:
    """Scripts of many rounds come last: what fails in one step is no news in several."""
    from treeproof.generate.script_units import draw_scripts, script_units

    number = cases // CASES_A_SCRIPT
    drawn = script_units(settings.profile, settings.seed, number, settings.dtype)
    own = share(drawn, settings.shard, lambda unit: float(unit.count), lambda unit: unit.name)
    return [
        Source(
            unit.name,
            partial(draw_scripts, unit),
            cost=CASES_A_SCRIPT * unit.count,
            fit=_fit_for(able, settings),
            last=True,
            size=unit.count,
        )
        for unit in own
    ]


def _fit_for(
    able: Mapping[str, Capabilities], settings: RunSettings
) -> Callable[[VerifyCase, str], VerifyCase]:
    """Scripts are few: a backend gets each with a layer and a cache that it takes, where there are any."""
    from treeproof.generate.fitting import fitted

    def fit(case: VerifyCase, backend: str) -> VerifyCase:
        if backend not in able:
            return case
        return fitted(case, able[backend], settings.device, settings.dtype) or case

    return fit


def endless_sources(settings: RunSettings, able: Mapping[str, Capabilities]) -> Iterator[Source]:
    """Work units of a profile without an end, and scripts between them as a bounded run has them after
    all of its own, each made when it is its turn; of n shards, every nth."""
    from treeproof.generate.endless import endless_script, endless_unit

    fit = _fit_for(able, settings)
    given, shard = (settings.profile, settings.seed, settings.dtype), settings.shard
    first, units = settings.units or (0, None)

    def of_shard(number: int) -> int:
        return number * shard.count + shard.number - 1

    for number in count(first) if units is None else range(first, first + units):
        unit = endless_unit(of_shard(number), *given)
        yield from _unit_sources(unit, able)
        cases = number * unit.count
        for at in range(cases // CASES_A_SCRIPT, (cases + unit.count) // CASES_A_SCRIPT):
            one = endless_script(of_shard(at), *given)
            yield Source(one.name, partial(_just, one.case), fit=fit, last=True)


def _unit_sources(unit: WorkUnit, able: Mapping[str, Capabilities]) -> list[Source]:
    """One for the backends that take batches as they are drawn, one for each other width."""
    from treeproof.generate.units import draw

    def cases(width: Width) -> list[VerifyCase]:
        # Cases that differ in what is cut off are one case.
        return list(dict.fromkeys(levelled(case, width) for case in draw(unit)))

    return [
        Source(
            unit.name, partial(cases, width), names, varied=True, cost=unit.cost, size=unit.count
        )
        for width, names in by_width(able).items()
    ]


@dataclass(frozen=True)
class Shape:
    """A tree of a file that was given."""

    name: str
    """File and tree."""
    cases: Sequence[VerifyCase]
    """One a prefix length."""


def read_shapes(settings: RunSettings) -> list[Shape]:
    """The shapes of the tree files, each at each prefix length. Reads the files at once.

    Raises FileError naming the file and the entry.
    """
    from treeproof.generate.treefile import cases_of, read_trees

    shapes = []
    for path in settings.trees:
        trees, width = read_trees(path), len(settings.prefixes)
        cases = cases_of(trees, settings.prefixes, settings.seed)
        if settings.dtype is not None:
            cases = [replace(c, shape=replace(c.shape, dtype=settings.dtype)) for c in cases]
        shapes += [
            Shape(f"{path.name}: {tree.name}", cases[i * width : (i + 1) * width])
            for i, tree in enumerate(trees)
        ]
    return share(shapes, settings.shard, _cost, lambda shape: shape.name)


def _cost(shape: Shape) -> float:
    """Rows times keys."""
    requests = (request for case in shape.cases for request in case.requests)
    return sum(float(r.num_rows * (r.prefix_len + r.num_rows)) for r in requests)


def shaped_sources(
    shapes: Iterable[Shape], able: Mapping[str, Capabilities], settings: RunSettings
) -> list[Source]:
    """Every backend gets each shape in a case that it takes, where there is one.

    A backend that takes the case as it is drawn gets that; another one a case fitted to what it
    says it can do. Where nothing fits, it gets the drawn case and says why not.
    """
    from treeproof.generate.fitting import fitted

    sources = []
    for shape in shapes:
        for case in shape.cases:
            takers: dict[VerifyCase, set[str]] = {case: set()}
            for name, capabilities in able.items():
                fit = fitted(case, capabilities, settings.device, settings.dtype)
                takers.setdefault(fit or case, set()).add(name)
            sources += [
                Source(shape.name, partial(_just, fit), frozenset(names))
                for fit, names in takers.items()
                if names
            ]
    return sources


def case_drawn(case: VerifyCase, unit: str, seconds: float = 0.0) -> CaseDrawn:
    """The event of a case: its size and the event classes it falls in."""
    from treeproof.generate.tags import tags

    return CaseDrawn(
        case=case.id,
        unit=unit,
        tags=tags(case),
        rows=tuple(request.num_nodes for request in case.requests),
        prefixes=tuple(request.prefix_len for request in case.requests),
        trees=tuple(content_id(replace(request, pad_rows=0))[:12] for request in case.requests),
        seconds=seconds,
    )
