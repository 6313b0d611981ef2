"""Statements about what serves many rounds: a pool with one rule that is another, or a scheduler.

Each is tried on everything that was asked and answered: pages are told apart by what was handed out, so
that an order of their own explains nothing. A statement holds where every answer is one that it gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

FULL = "full"
"""The answer of a pool that has not as many pages."""


@dataclass(frozen=True)
class Call:
    """One question to a pool or a scheduler, and its answer."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


@dataclass(frozen=True)
class Statement:
    name: str
    says: str
    rule: str
    """The rule that is another than it should be."""


STATEMENTS = (
    Statement("pool-keeps-surplus", "pages reserved for drafts are never given back", "trim-none"),
    Statement(
        "pool-holds-surplus",
        "pages reserved for drafts are held until who asked leaves",
        "trim-later",
    ),
    Statement("pool-keeps-last-page", "who leaves leaves the last page behind", "leave-last"),
    Statement("pool-frees-open-page", "a page that is not full is given back", "trim-floor"),
    Statement("pool-frees-shared-pages", "who leaves frees pages that are shared", "leave-all"),
    Statement("pool-evicts-held-pages", "eviction takes pages that are held", "evict-held"),
    Statement("cache-before-written", "a prompt is shared before it is written", "early"),
    Statement("cache-key-without-successor", "a key leaves out the token after its page", "short"),
    Statement("cache-past-the-stop", "tokens that nobody was served are cached", "unserved"),
    Statement(
        "cache-forgets-equal-page", "a page of the same tokens takes a cached one's place", "latest"
    ),
    Statement("cache-matches-past-a-miss", "pages behind one that is missing are matched", "gaps"),
    Statement("cache-key-of-page-alone", "a key leaves out the tokens before its page", "alone"),
    Statement("window-edge-one-on", "the window's edge is taken one column too far", "slide-one"),
)


def causes(page: int, usable: frozenset[int], calls: Sequence[Call]) -> list[Statement]:
    """Statements that give every answer of a pool; none where the right rules give them all."""
    if _Pool(page, Counter(usable), "").gives(calls):
        return []
    return [s for s in STATEMENTS if _Pool(page, Counter(usable), s.rule).gives(calls)]


@dataclass
class _Pool:
    """A pool by its rules, which takes what was handed out for what it would have handed out."""

    page: int
    free: Counter[int]
    """How often each is free: what is given back twice may be handed out twice."""
    rule: str
    held: dict[int, list[int]] = field(default_factory=dict)
    holders: Counter[int] = field(default_factory=Counter)
    cached: dict[tuple[int, ...], int | None] = field(default_factory=dict)
    """None: a page that is in the cache before anybody knows which one it is."""
    early: set[int] = field(default_factory=set)
    """Pages that were shared before their owner was told of them."""
    taken: dict[int, int] = field(default_factory=dict)
    """Pages that a request has from the start, and has not been told of."""

    def gives(self, calls: Sequence[Call]) -> bool:
        steps: dict[str, Callable[..., bool]] = {
            "match": self._match,
            "reserve": self._reserve,
            "trim": self._trim,
            "slide": self._slide,
            "publish": self._publish,
            "release": self._release,
            "evict": self._evict,
        }
        return all(steps[call.method](call.answer, *call.arguments) for call in calls)

    def _match(self, answer: Any, request: int, tokens: Sequence[int]) -> bool:
        found: list[int | None] = []
        for end in range(self.page, len(tokens), self.page):
            key = self._key(tokens, end)
            if key not in self.cached:
                if self.rule == "gaps":
                    continue
                break
            found.append(self.cached[key])
        if len(answer) != len(found):
            return False
        self.held[request] = list(answer)
        self.holders.update(answer)
        if self.rule == "early":
            self.taken[request] = -(-len(tokens) // self.page) - len(answer)
            for end in range(self.page, len(tokens), self.page):
                self.cached.setdefault(self._key(tokens, end), None)
        fits = all(known in (None, page) for known, page in zip(found, answer, strict=True))
        # Whose page it is shows when it is shared, and its owner is told of it later.
        self.early |= {page for known, page in zip(found, answer, strict=True) if known is None}
        for page in self.early:
            self.free[page] = 0
        return fits

    def _reserve(self, answer: Any, request: int, columns: int) -> bool:
        own = self.held.setdefault(request, [])
        missing = max(self.taken.get(request, 0), -(-columns // self.page) - len(own))
        others = sum(count for one, count in self.taken.items() if one != request)
        if missing + others > len(+self.free):
            self._evict(None)
        if answer == FULL:
            return missing + others > len(+self.free)
        self.taken.pop(request, None)
        new = answer[len(own) :]
        if list(answer[: len(own)]) != own or len(new) != max(0, missing):
            return False
        fits = all(self.free[page] > 0 or page in self.early for page in new)
        self.free -= Counter(new)
        own += new
        self.holders.update(new)
        return fits

    def _trim(self, answer: Any, request: int, columns: int) -> bool:
        own = self.held[request]
        if self.rule == "trim-later":
            return True
        kept = columns // self.page if self.rule == "trim-floor" else -(-columns // self.page)
        if self.rule != "trim-none":
            self._give_back(own[kept:])
        del own[kept:]
        return True

    def _slide(self, answer: Any, request: int, first: int) -> bool:
        own = self.held[request]
        gone = (first + (self.rule == "slide-one")) // self.page
        for i in range(min(gone, len(own))):
            self._give_back([own[i]])
            own[i] = -1
        return True

    def _publish(self, answer: Any, request: int, tokens: Sequence[int], served: int) -> bool:
        own, upto = self.held[request], len(tokens) if self.rule == "unserved" else served
        for i, end in enumerate(range(self.page, upto, self.page)):
            if own[i] >= 0:
                key = self._key(tokens, end)
                if self.cached.get(key) is None or self.rule == "latest":
                    self.cached[key] = own[i]
        return True

    def _release(self, answer: Any, request: int) -> bool:
        own = self.held.pop(request, [])
        self.taken.pop(request, None)
        if self.rule == "leave-all":
            self.free.update(page for page in own if page >= 0)
        else:
            self._give_back(own[:-1] if self.rule == "leave-last" else own)
        return True

    def _evict(self, answer: Any) -> bool:
        for key, page in list(self.cached.items()):
            if page is not None and (self.rule == "evict-held" or not self.holders[page]):
                del self.cached[key]
                self.free[page] += 1
        return True

    def _key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        start = end - self.page if self.rule == "alone" else 0
        return tuple(tokens[start : end + (self.rule != "short")])

    def _give_back(self, pages: Iterable[int]) -> None:
        known = set(self.cached.values())
        for page in pages:
            if page >= 0:
                self.holders[page] -= 1
                if not self.holders[page] and page not in known:
                    self.free[page] += 1


READS_SAMPLED = Statement(
    "drafter-reads-sampled", "the drafter reads a sampled token after every chunk of a prompt", ""
)
RUNS_AHEAD = Statement("runs-ahead", "nobody waits for the result of the last round", "")


def scheduling_causes(calls: Sequence[Call]) -> list[Statement]:
    """The same of a scheduler."""
    found = []
    successors = [call for call in calls if call.method == "successors"]
    if (
        successors
        and all(_sampled_last(call) for call in successors)
        and any(not _reads_on(call) for call in successors)
    ):
        found.append(READS_SAMPLED)
    chosen = [call for call in calls if call.method == "runnable"]
    if any(call.arguments[1] for call in chosen) and all(
        list(call.answer) == list(call.arguments[0]) for call in chosen
    ):
        found.append(RUNS_AHEAD)
    return found


def _sampled_last(call: Call) -> bool:
    prompt, first, count, sampled = call.arguments
    return list(call.answer) == [*prompt[first + 1 : first + count], sampled]


def _reads_on(call: Call) -> bool:
    prompt, first, count, sampled = call.arguments
    return list(call.answer) == [*prompt, sampled][first + 1 : first + count + 1]
