"""Pages of requests, as a pool hands them out and takes them back; an account of them is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.reference.pool import pool
from treeproof.contract.layout import KVLayout
from treeproof.contract.serving import PoolFull
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.asked import Asked, numbers
from treeproof.engine.serving.ends import stop_at
from treeproof.properties.holdings import Holdings
from treeproof.properties.serving import judge_cached


class Paging:
    """The backend's pool, or the reference's. Requests are numbers, and so is `nobody`, which asks to
    see what the pool answers."""

    def __init__(self, trial: Trial, layout: KVLayout, nobody: int) -> None:
        self.trial, self.page, self.nobody = trial, layout.page_size, nobody
        self.pool = Asked(trial, "pool", pool, layout)
        self.holdings = Holdings(layout)
        self.published: list[tuple[int, ...]] = []

    def match(self, number: int, prompt: Sequence[int]) -> list[int]:
        pages = self._ask("match", number, list(prompt)) or []
        self.holdings.matched(number, pages, (len(prompt) - 1) // self.page)
        return pages

    def reserve(self, number: int, columns: int) -> list[int] | None:
        """Pages of a request, or None where there are not enough, though the cache is emptied."""
        pages = self._ask("reserve", number, columns)
        if pages is None:
            self._empty_cache()
            pages = self._ask("reserve", number, columns)
        if pages is None:
            self.holdings.refused(number, columns)
            return None
        self.holdings.reserved(number, pages, columns)
        return pages

    def trim(self, number: int, columns: int) -> list[int]:
        """What the request holds after it."""
        self._ask("trim", number, columns)
        with self._given_back(number):
            self.holdings.trimmed(number, columns)
        return self.holdings.held[number]

    def slide(self, number: int, first: int) -> list[int]:
        """What the request holds after it, -1 in place of pages that are gone."""
        self._ask("slide", number, first)
        with self._given_back(number):
            self.holdings.slid(number, first)
        return self.holdings.held[number]

    def publish(self, number: int, tokens: Sequence[int], served: int) -> None:
        """All tokens but the last have keys, and so many of them were served."""
        self.published.append(tuple(tokens[:served]))
        self._ask("publish", number, list(tokens), served)
        self.holdings.publish(number, len(tokens) - 1)

    def release(self, number: int) -> None:
        self._ask("release", number)
        with self._given_back(number):
            self.holdings.released(number)

    def evict(self) -> None:
        self._empty_cache()
        self._ask_for_all_free(None)

    def look_up(self, number: int, tokens: Sequence[int]) -> None:
        """What the cache knows of a sequence that was stopped: nothing that was served to nobody."""
        page = self.page
        pages = self._ask("match", self.nobody, list(tokens)) or []
        self._ask("release", self.nobody)
        known = next(
            (
                end
                for end in range(len(pages) * page, 0, -page)
                if any(p[: end + 1] == tuple(tokens[: end + 1]) for p in self.published)
            ),
            0,
        )
        stop_at(self.trial, judge_cached(number, len(pages) * page, known))

    def all_free(self) -> None:
        """So many pages are there as there were."""
        self._empty_cache()
        self.holdings.lost(self.holdings.usable.difference(self._all_there_are()))

    def _all_there_are(self) -> list[int]:
        """Every page that can be had, taken one after another and given back."""
        found: list[int] = []
        for _ in range(len(self.holdings.usable) + 1):  # the last one is one too many
            pages = self._ask("reserve", self.nobody, (len(found) + 1) * self.page)
            if pages is None:
                break
            self.holdings.reserved(self.nobody, pages, (len(found) + 1) * self.page)
            found = pages
        self._nobody_lets_go()
        return found

    def _empty_cache(self) -> None:
        self._ask("evict")
        self.holdings.evicted()

    @contextmanager
    def _given_back(self, number: int) -> Iterator[None]:
        """What is let go of in the books can be had by whoever asks."""
        before = self.holdings.in_use
        yield
        if before - self.holdings.in_use:
            self._ask_for_all_free(number)

    def _ask_for_all_free(self, number: int | None) -> None:
        """In nobody's name, after something this request has done; twice, so that a pool that hands out first
        what came back last is then as it was."""
        free = self.holdings.free
        count = self._had_with(free)
        if count is None:
            self._who_has_them(number)
        elif count:
            if self._ask("reserve", self.nobody, count * self.page) is None:
                self._who_has_them(self.nobody)
            self._nobody_lets_go()

    def _had_with(self, free: frozenset[int]) -> int | None:
        """Pages that nobody is given until all of these are among them; None: some never are. Others may be
        handed out first, also cached ones, but no more than that."""
        found: set[int] = set()
        while not free <= found:
            columns = len(free | found) * self.page
            pages = self._ask("reserve", self.nobody, columns)
            if pages is None:
                break
            self.holdings.reserved(self.nobody, pages, columns)
            found = set(pages)
        if found:
            self._nobody_lets_go()
        return len(found) if free <= found else None

    def _who_has_them(self, suspect: int | None) -> None:
        """Free pages that cannot be had are withheld by the request whose leaving brings them back, or lost.
        The script ends here, so all of them may leave, and the suspect first."""
        books = self.holdings
        missing = books.free.difference(self._all_there_are())
        if not missing:
            books.refused(self.nobody, len(books.free) * self.page)
        first = [] if suspect is None else [suspect]
        for number in dict.fromkeys([*first, *books.held]):
            needed = sum(page >= 0 for page in books.held.get(number, ()))
            if number in books.held:
                self._ask("release", number)
                books.released(number)
            self._empty_cache()
            if missing.intersection(self._all_there_are()):
                books.withheld(number, missing, needed)
        books.lost(missing, suspect)

    def _nobody_lets_go(self) -> None:
        self._ask("release", self.nobody)
        self.holdings.released(self.nobody)

    def slots(self, pages: Sequence[int], end: int, device: str) -> Tensor:
        """(end,) slots of the first columns of who holds these pages."""
        own = torch.tensor(pages, device=device)
        column = torch.arange(end, device=device)
        return own[column // self.page] * self.page + column % self.page

    def _ask(self, method: str, *arguments: Any) -> list[int] | None:
        """What the pool says; None: that it is full."""
        return self.pool.answer(_pages_or_full, method, *arguments)


def _pages_or_full(asked: Any, method: str, *arguments: Any) -> list[int] | None:
    """Pages of an answer that has some; None where there is no room, which is an answer as well."""
    try:
        if method in ("match", "reserve"):
            return numbers(asked, method, *arguments)
        getattr(asked, method)(*arguments)
    except PoolFull:
        return None
    return []
