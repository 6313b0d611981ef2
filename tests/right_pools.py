"""Pools that keep their books each in another way, and are right, as far as anybody can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.layout import KVLayout
from treeproof.contract.serving import PoolFull


class FirstInFirstOut(PagedPool):
    """What came back last is handed out last."""

    def give_back(self, pages: Sequence[int]) -> None:
        count = len(self.free)
        super().give_back(pages)
        self.free = [*self.free[count:][::-1], *self.free[:count]]


class LowestFirst(PagedPool):
    """A sorted list of free pages."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        self.free.sort(reverse=True)
        return super().reserve(request, columns)


class Lazy(PagedPool):
    """What is given back is written down, and put in order before the next question is answered."""

    def __init__(self, kv: KVLayout) -> None:
        super().__init__(kv)
        self.later: list[Callable[[], None]] = []

    def settle(self) -> None:
        for step in self.later:
            step()
        self.later.clear()

    def trim(self, request: int, columns: int) -> None:
        self.later.append(lambda: PagedPool.trim(self, request, columns))

    def slide(self, request: int, first: int) -> None:
        self.later.append(lambda: PagedPool.slide(self, request, first))

    def release(self, request: int) -> None:
        self.later.append(lambda: PagedPool.release(self, request))

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        self.later.append(lambda: PagedPool.publish(self, request, tokens, served))

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        self.settle()
        return super().match(request, tokens)

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        self.settle()
        return super().reserve(request, columns)

    def evict(self) -> None:
        self.settle()
        super().evict()


class FullUntilEvicted(PagedPool):
    """It leaves to others when the cache is emptied."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own = self.held.get(request, [])
        if -(-columns // self.page) - len(own) > len(self.free):
            raise PoolFull
        return super().reserve(request, columns)


class EvictsOneByOne(PagedPool):
    """Only as many cached pages go as are asked for, the longest unused first."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own = self.held.get(request, [])
        missing = -(-columns // self.page) - len(own)
        for key, page in list(self.cached.items()):
            if len(self.free) >= missing:
                break
            if not self.uses[page]:
                del self.cached[key]
                self.free.append(page)
        return super().reserve(request, columns)


class CacheBeforeFree(PagedPool):
    """The cache is emptied before a page is taken that nobody has used yet."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        if -(-columns // self.page) > len(self.held.get(request, [])):
            self.evict()
        return super().reserve(request, columns)


class CachesNothing(PagedPool):
    """Every prompt is computed anew."""

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        """Nothing is kept."""


class CachesWhoLeaves(PagedPool):
    """What a request has published is shared once it has left."""

    def __init__(self, kv: KVLayout) -> None:
        super().__init__(kv)
        self.known: dict[int, tuple[Sequence[int], int]] = {}

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        self.known[request] = tokens, served

    def release(self, request: int) -> None:
        if request in self.known:
            super().publish(request, *self.known.pop(request))
        super().release(request)


class LastOfEqual(PagedPool):
    """Pages of the same tokens are all kept, and the last of them is the one that is found."""

    def __init__(self, kv: KVLayout) -> None:
        super().__init__(kv)
        self.equal: dict[tuple[int, ...], list[int]] = {}

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        own = self.held[request]
        for i, end in enumerate(range(self.page, served, self.page)):
            known = self.equal.get(self.key(tokens, end), [])
            if own[i] >= 0 and own[i] not in known:
                self.equal[self.key(tokens, end)] = [*known, own[i]]

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        self.cached = {key: pages[-1] for key, pages in self.equal.items()}
        return super().match(request, tokens)

    def evict(self) -> None:
        for key, pages in list(self.equal.items()):
            self.free += [page for page in pages if not self.uses[page]]
            self.equal[key] = [page for page in pages if self.uses[page]]
            if not self.equal[key]:
                del self.equal[key]

    def give_back(self, pages: Sequence[int]) -> None:
        # `cached` is what is not free once nobody holds it.
        every = [page for equal in self.equal.values() for page in equal]
        self.cached = {(i,): page for i, page in enumerate(every)}
        super().give_back(pages)


class CopiesOnWrite(PagedPool):
    """Before a request grows into a page that others hold as well it gets one of its own."""

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own = list(super().reserve(request, columns))
        for i in range(columns // self.page, len(own)):
            if own[i] >= 0 and self.uses[own[i]] > 1:
                raise AssertionError("whole pages are shared, and nobody grows into those")
        return tuple(own)


class BySlot:
    """Slots are what is counted; a page is free once none of its slots is anybody's. Nothing is cached."""

    def __init__(self, kv: KVLayout) -> None:
        self.page, self.kv = kv.page_size, kv
        self.owner = [
            -1 if slot // kv.page_size or kv.pad_slot else 0 for slot in range(kv.num_slots)
        ]
        self.pages: dict[int, list[int]] = {}

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        self.pages[request] = []
        return ()

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own, page = self.pages.setdefault(request, []), self.page
        open_pages = [
            p
            for p in range(self.kv.num_slots // page)
            if all(owner == -1 for owner in self.owner[p * page : (p + 1) * page])
        ]
        missing = max(0, -(-columns // page) - len(own))
        if missing > len(open_pages):
            raise PoolFull
        own += open_pages[:missing]
        for column in range(columns):
            if own[column // page] >= 0:
                self.owner[own[column // page] * page + column % page] = 1 + abs(request)
        return tuple(own)

    def trim(self, request: int, columns: int) -> None:
        own, page = self.pages[request], self.page
        for column in range(columns, len(own) * page):
            self.let_go(own[column // page], column % page)
        del own[-(-columns // page) :]

    def slide(self, request: int, first: int) -> None:
        own, page = self.pages[request], self.page
        for i in range(min(first // page, len(own))):
            for offset in range(page):
                self.let_go(own[i], offset)
            own[i] = -1

    def let_go(self, page: int, offset: int) -> None:
        if page >= 0:
            self.owner[page * self.page + offset] = -1

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        """Nothing is kept."""

    def release(self, request: int) -> None:
        self.trim(request, 0)
        del self.pages[request]

    def evict(self) -> None:
        """There is nothing to give up."""


@dataclass
class _Node:
    page: int = -1
    locks: int = 0
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class Radix:
    """A tree of pages. A request locks the way down to its last cached page, and what it publishes and is
    there already it keeps a copy of. Leaves that nobody locks go one by one, when pages are wanted.
    """

    def __init__(self, kv: KVLayout) -> None:
        self.page = kv.page_size
        self.free = list(range(1 if kv.pad_slot == 0 else 0, kv.num_slots // kv.page_size))
        self.root = _Node()
        self.held: dict[int, list[int]] = {}
        self.way: dict[int, list[_Node]] = {}

    def keys(self, tokens: Sequence[int], end: int) -> list[tuple[int, ...]]:
        """Of the pages in tokens[:end], each its own tokens and the next; what was before is the way."""
        starts = range(0, end - self.page, self.page)
        return [tuple(tokens[at : at + self.page + 1]) for at in starts]

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        way, node = self.way.setdefault(request, []), self.root
        for key in self.keys(tokens, len(tokens)):
            if key not in node.children:
                break
            node = node.children[key]
            node.locks += 1
            way.append(node)
        self.held[request] = [node.page for node in way]
        return tuple(self.held[request])

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        own = self.held.setdefault(request, [])
        missing = max(0, -(-columns // self.page) - len(own))
        while len(self.free) < missing and self.drop_a_leaf(self.root):
            pass
        if len(self.free) < missing:
            raise PoolFull
        own += self.free[:missing]
        del self.free[:missing]
        return tuple(own)

    def trim(self, request: int, columns: int) -> None:
        own = self.held[request]
        kept = -(-columns // self.page)
        self.free += own[kept:]
        del own[kept:]

    def slide(self, request: int, first: int) -> None:
        raise NotImplementedError("a window's pages are not in this tree")

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        own, node, way = self.held[request], self.root, self.way.setdefault(request, [])
        for i, key in enumerate(self.keys(tokens, served)):
            if i < len(way):
                node = way[i]
                continue
            if key in node.children:
                break  # its own copy, and all behind it, stay its own
            node.children[key] = node = _Node(own[i], locks=1)
            way.append(node)

    def release(self, request: int) -> None:
        way = self.way.pop(request, [])
        for node in way:
            node.locks -= 1
        self.free += self.held.pop(request)[len(way) :]

    def evict(self) -> None:
        while self.drop_a_leaf(self.root):
            pass

    def drop_a_leaf(self, node: _Node) -> bool:
        for key, child in node.children.items():
            if self.drop_a_leaf(child):
                return True
            if not child.children and not child.locks:
                self.free.append(child.page)
                del node.children[key]
                return True
        return False


RIGHT: tuple[Callable[[Any], Any], ...] = (
    PagedPool, FirstInFirstOut, LowestFirst, Lazy, FullUntilEvicted, EvictsOneByOne, CacheBeforeFree,
    CachesNothing, CachesWhoLeaves, LastOfEqual, CopiesOnWrite, BySlot, Radix,
)  # fmt: skip
