"""A paged pool with a prefix cache: who holds a page, and which pages hold which tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treeproof.backends.reference.used import note
from treeproof.contract.counter import permutation
from treeproof.contract.layout import KVLayout
from treeproof.contract.serving import PoolFull

_ORDER = 0x706F6F6C
"""Seed of a shuffled order."""


def pool(kv: KVLayout) -> PagedPool:
    """All pages free, to be handed out in the order that `kv.order` says."""
    note("pool")
    return PagedPool(kv)


class PagedPool:
    """Pages by request, and by the tokens that they hold.

    A cached page's key are all tokens up to its end and the one after: the drafter's keys of its last
    column depend on that one too.
    """

    def __init__(self, kv: KVLayout) -> None:
        self.page = kv.page_size
        pages = list(range(1 if kv.pad_slot == 0 else 0, kv.num_slots // kv.page_size))
        if kv.order == "shuffled":
            pages = [pages[i] for i in permutation(len(pages), _ORDER)]
        # The last one is handed out first, and so is what was given back last.
        self.free = pages if kv.order == "reversed" else pages[::-1]
        self.held: dict[int, list[int]] = {}
        self.uses: Counter[int] = Counter()
        self.cached: dict[tuple[int, ...], int] = {}

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        found: list[int] = []
        for end in range(self.page, len(tokens), self.page):
            page = self.cached.get(self.key(tokens, end))
            if page is None:
                break
            found.append(page)
        self.held[request] = found
        self.uses.update(found)
        return tuple(found)

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own = self.held.setdefault(request, [])  # -1 where the window has moved on
        missing = -(-columns // self.page) - len(own)
        if missing > len(self.free):
            self.evict()
        if missing > len(self.free):
            raise PoolFull(f"{missing} pages are asked for, {len(self.free)} are free")
        for _ in range(missing):
            own.append(self.free.pop())
            self.uses[own[-1]] += 1
        return tuple(own)

    def trim(self, request: int, columns: int) -> None:
        kept = -(-columns // self.page)
        own = self.held[request]
        self.give_back(own[kept:])
        del own[kept:]

    def slide(self, request: int, first: int) -> None:
        own = self.held[request]
        for i in range(min(first // self.page, len(own))):
            self.give_back([own[i]])
            own[i] = -1

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        own = self.held[request]
        for i, end in enumerate(range(self.page, served, self.page)):
            if own[i] >= 0:
                self.cached.setdefault(self.key(tokens, end), own[i])

    def release(self, request: int) -> None:
        self.give_back(self.held.pop(request, []))

    def evict(self) -> None:
        for key, page in list(self.cached.items()):
            if not self.uses[page]:
                del self.cached[key]
                self.free.append(page)

    def key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        """What a page that ends before column `end` is found by."""
        return tuple(tokens[: end + 1])

    def give_back(self, pages: Sequence[int]) -> None:
        """One holder fewer; who has none, and is not cached, is free."""
        cached = set(self.cached.values())
        for page in pages:
            if page < 0:
                continue
            self.uses[page] -= 1
            if not self.uses[page] and page not in cached:
                self.free.append(page)
