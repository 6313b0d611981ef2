"""Pages that a pool withholds are seen, and no pool that is right is taken for one that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from right_pools import RIGHT, FullUntilEvicted, Radix
from test_rounds import TREE, checked, ready, served, turns, with_pool

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.case import VerifyCase
from treeproof.contract.script import Admit, Evict, Finish, Prefill, Round, Step, Turn
from treeproof.contract.serving import PoolFull
from treeproof.faults.smallest import request
from treeproof.generate.script_units import ScriptUnit, draw_scripts

_BUSY: tuple[Step, ...] = (
    Admit(request=0), Prefill(request=0, tokens=5), Admit(request=1), Prefill(request=0),
    Prefill(request=1), turns(3, 0, idle=2), turns(0, 4), Finish(request=0), Admit(request=2),
    Prefill(request=2), Round(turns=(Turn(request=1, accept=1, nodes=2), Turn(request=2, accept=4))),
    Evict(), Admit(request=0), Prefill(request=0), turns(1, 2, 3), Finish(request=1), Admit(request=1),
    Prefill(request=1), turns(0, 0, 0), turns(4, 4, 4),
)  # fmt: skip


def busy(page: int, shared: int, spare: int, **settings: Any) -> VerifyCase:
    """Three requests with a prefix in common that come, grow, leave and come again."""
    return served(
        request(TREE, shared + 3), request(TREE, shared + 9), request(TREE, shared + 5),
        steps=_BUSY, page_size=page, layout={"shared_prefix": shared, **settings.pop("layout", {})},
        spare_pages=spare, **settings,
    )  # fmt: skip


@cache
def scripts() -> tuple[VerifyCase, ...]:
    """Pages of 1, 4 and 16, with room for all and with little, and what is drawn."""
    return (
        busy(1, 6, 60), busy(1, 6, 12), busy(4, 8, 20), busy(4, 8, 3), busy(16, 32, 8),
        busy(4, 8, 20, window=5, layout={"evicted": True}),
        *draw_scripts(ScriptUnit("quick", 5, 0, 12)),
    )  # fmt: skip


@pytest.mark.parametrize("pool", RIGHT, ids=lambda pool: pool.__name__)
def test_a_pool_that_is_right_is_not_blamed_however_it_keeps_its_books(pool: Any) -> None:
    for number, script in enumerate(scripts()):
        if pool is Radix and script.layout.evicted:
            continue
        assert checked(script, with_pool(pool)).failures == (), number


def test_in_some_of_these_scripts_pages_are_shared_and_in_some_a_pool_is_full() -> None:
    answers = {"shared": 0, "full": 0, "evicted": 0}

    class Seen(PagedPool):
        def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
            found = super().match(request, tokens)
            answers["shared"] += bool(found)
            return found

        def reserve(self, request: int, columns: int) -> Sequence[int]:
            try:
                return super().reserve(request, columns)
            except PoolFull:
                answers["full"] += 1
                raise

        def evict(self) -> None:
            answers["evicted"] += any(not self.uses[page] for page in self.cached.values())
            super().evict()

    for script in scripts():
        checked(script, with_pool(Seen))
    assert min(answers.values()) > 10, answers


class TrimsNothing(PagedPool):
    def trim(self, request: int, columns: int) -> None:
        """What was reserved is held."""


class TrimsTooFew(PagedPool):
    def trim(self, request: int, columns: int) -> None:
        super().trim(request, columns + self.page)


class ReleasesWhenEvicted(FullUntilEvicted):
    """Who has left still counts until somebody empties the cache."""

    def __init__(self, kv: Any) -> None:
        super().__init__(kv)
        self.gone: list[list[int]] = []

    def release(self, request: int) -> None:
        self.gone.append(self.held.pop(request, []))

    def evict(self) -> None:
        for pages in self.gone:
            self.give_back(pages)
        self.gone.clear()
        super().evict()


class TrimsWhenSomebodyComes(PagedPool):
    def __init__(self, kv: Any) -> None:
        super().__init__(kv)
        self.later: dict[int, int] = {}

    def trim(self, request: int, columns: int) -> None:
        self.later[request] = columns

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        for other, columns in self.later.items():
            if other in self.held:
                super().trim(other, columns)
        self.later.clear()
        return super().match(request, tokens)


class SlidesNothing(PagedPool):
    """Pages behind the window go when the request does."""

    def __init__(self, kv: Any) -> None:
        super().__init__(kv)
        self.behind: dict[int, list[int]] = {}

    def slide(self, request: int, first: int) -> None:
        own = self.held[request]
        for i in range(first // self.page):
            if own[i] >= 0:
                self.behind.setdefault(request, []).append(own[i])
            own[i] = -1

    def release(self, request: int) -> None:
        super().release(request)
        self.give_back(self.behind.pop(request, []))


class HoldsOneMore(PagedPool):
    """One page for later that it does not tell of."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        found = super().reserve(request, columns)
        if self.free and request == 0 and request not in self.spare:
            self.spare[request] = self.free.pop()
        return found

    def __init__(self, kv: Any) -> None:
        super().__init__(kv)
        self.spare: dict[int, int] = {}

    def release(self, request: int) -> None:
        super().release(request)
        if request in self.spare:
            self.free.append(self.spare.pop(request))


class GivesOneMore(PagedPool):
    def reserve(self, request: int, columns: int) -> Sequence[int]:
        return super().reserve(request, columns + self.page)


class GivesFewAtOnce(PagedPool):
    """More than four pages in one answer are too many, whatever is free."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        if -(-columns // self.page) - len(self.held.get(request, ())) > 4:
            raise PoolFull
        return super().reserve(request, columns)


class KeepsAReserve(PagedPool):
    """The last page is for bad times, which never come."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        missing = -(-columns // self.page) - len(self.held.get(request, ()))
        if 0 < len(self.free) == missing:
            raise PoolFull
        return super().reserve(request, columns)


_WITHHOLDS: tuple[tuple[Callable[[Any], Any], str, int], ...] = (
    (TrimsNothing, "request 0 holds 4 pages, and its columns need 3: nobody else can have [", 4),
    (TrimsTooFew, "request 0 holds 4 pages, and its columns need 3: nobody else can have [", 4),
    (TrimsWhenSomebodyComes, "request 0 holds 4 pages, and its columns need 3: nobody", 4),
    (ReleasesWhenEvicted, "step 4 of the script, where request 2 asks in nobody's name", 4),
    (HoldsOneMore, "request 0 holds 4 pages, and its columns need 3: nobody else can have", 4),
    (GivesOneMore, "request 0 holds 3 pages, and its columns need 2: nobody else can have", 2),
    (GivesFewAtOnce, "and is told that the pool is full, while requests hold 3 pages of 43", 4),
)


def two_rounds(**settings: Any) -> VerifyCase:
    steps = [*ready(0), turns(3), turns(0)]
    return served(request(TREE, 6), steps=steps, page_size=4, **settings)


@pytest.mark.parametrize(
    ("pool", "said", "step"), _WITHHOLDS, ids=lambda of: getattr(of, "__name__", "")
)
def test_pages_that_nobody_else_can_have_are_withheld(pool: Any, said: str, step: int) -> None:
    script = two_rounds()
    assert checked(script).failures == ()
    (failure,) = checked(script, with_pool(pool)).failures
    assert (failure.key, failure.stage) == (("kv", "withholds-pages"), "pool")
    assert said in failure.message
    where = f"in step {step} of the script" if step < 5 else "once the script was over"
    assert f"seen {where}" in failure.message


def test_pages_behind_a_window_are_withheld_as_well() -> None:
    script = two_rounds(window=4, layout={"evicted": True})
    # What the cache may keep is nobody's to miss before it is emptied.
    steps = (*script.script[:3], Evict(), *script.script[3:])
    script = msgspec.structs.replace(script, script=steps)
    assert checked(script).failures == ()
    (failure,) = checked(script, with_pool(SlidesNothing)).failures
    assert failure.key == ("kv", "withholds-pages")
    assert "request 0 holds 3 pages, and its columns need 2: nobody else" in failure.message


def test_a_cache_that_could_be_emptied_does_not_hide_a_page_that_is_withheld() -> None:
    steps = [*ready(0), Finish(request=0), *ready(1), turns_of(1)]
    script = served(request(TREE, 9), request(TREE, 6), steps=steps, page_size=4)
    assert checked(script).failures == ()
    (failure,) = checked(script, with_pool(TrimsNothing)).failures
    assert (failure.key, failure.request) == (("kv", "withholds-pages"), 1)
    assert failure.message.endswith("seen in step 6 of the script")


def turns_of(request: int) -> Round:
    return Round(turns=(Turn(request=request),))


def test_a_page_that_nobody_ever_gets_is_lost_and_not_withheld() -> None:
    (failure,) = checked(two_rounds(), with_pool(KeepsAReserve)).failures
    assert failure.key == ("kv", "leaks-slots")
    assert "1 of 43 pages never came back" in failure.message


def test_a_request_that_is_refused_though_there_is_room_is_told_apart_from_one_that_waits() -> None:
    class Refuses(PagedPool):
        def reserve(self, request: int, columns: int) -> Sequence[int]:
            if request == 1:
                raise PoolFull
            return super().reserve(request, columns)

    script = served(
        request(TREE, 6), request(TREE, 6), steps=[*ready(0), Admit(request=1), Prefill(request=1)]
    )
    (failure,) = checked(script, with_pool(Refuses)).failures
    assert (failure.key, failure.request) == (("kv", "withholds-pages"), 1)
    assert "request 1 asks for 6 pages more and is told that the pool is full" in failure.message
