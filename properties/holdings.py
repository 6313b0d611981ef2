"""Pages: no slot is owned twice, none is withheld and none is lost, whatever a pool says of itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treeproof.contract.failure import Failure
from treeproof.contract.layout import KVLayout
from treeproof.properties.violation import Violation


def _failure(
    kind: str, message: str, request: int | None, expected: str = "", actual: str = ""
) -> Failure:
    return Failure(
        identity="kv", kind=kind, evidence="measured", stage="pool", message=message,
        request=request, expected=expected, actual=actual,
    )  # fmt: skip


class Holdings:
    """The harness's own account of who holds which page, kept from what a pool has handed out."""

    def __init__(self, kv: KVLayout) -> None:
        self.page = kv.page_size
        self.usable = frozenset(range(1 if kv.pad_slot == 0 else 0, kv.num_slots // kv.page_size))
        self.held: dict[int, list[int]] = {}
        self.published: set[int] = set()
        """What the cache may keep, held or not; that it does is not asked for."""

    @property
    def in_use(self) -> set[int]:
        return {page for pages in self.held.values() for page in pages if page >= 0}

    @property
    def free(self) -> frozenset[int]:
        """Nobody holds these, and the cache may not keep them."""
        return self.usable - self.in_use - self.published

    def matched(self, request: int, pages: Sequence[int], most: int) -> None:
        """Pages of the prefix cache, at most `most`, which others may hold as well."""
        self._known(request, pages)
        if len(pages) > most:
            self._wrong(
                "wrong-pages", request,
                f"the prefix cache gives request {request} {len(pages)} pages, and {most} at most "
                "leave a token of its prompt to compute",
                str(most), str(len(pages)),
            )  # fmt: skip
        self.held[request] = list(pages)

    def reserved(self, request: int, pages: Sequence[int], columns: int) -> None:
        """What it held comes first; what is new is nobody's."""
        self._known(request, pages)
        own = self.held.get(request, [])
        needed = max(len(own), -(-columns // self.page))
        if list(pages[: len(own)]) != own or len(pages) < needed:
            self._wrong(
                "wrong-pages", request,
                f"request {request} holds pages {own} and asks for {columns} columns in pages of "
                f"{self.page}: it is given {list(pages)}, expected {needed} pages or more, those first",
                str(own), str(list(pages)),
            )  # fmt: skip
        holders = {page: other for other, theirs in self.held.items() for page in theirs}
        for page in pages[len(own) :]:
            if page in holders:
                self._wrong(
                    "owned-twice", request,
                    f"page {page} (slots {page * self.page} to {(page + 1) * self.page - 1}) is given "
                    f"to request {request} while {_named(holders[page])} holds it",
                    "a free page", f"page {page}",
                )  # fmt: skip
        self.held[request] = list(pages)
        self.published.difference_update(pages[len(own) :])
        if len(pages) > needed:
            self.withheld(request, pages[needed:], needed)

    def refused(self, request: int, columns: int) -> None:
        """It cannot have the pages that these columns need, though the cache is empty."""
        missing = -(-columns // self.page) - len(self.held.get(request, ()))
        free = len(self.usable) - len(self.in_use)
        if missing <= free:
            self._wrong(
                "withholds-pages", request,
                f"{_named(request)} asks for {_pages(missing)} more and is told that the pool is full, while "
                f"requests hold {_pages(len(self.in_use))} of {len(self.usable)}",
                f"{free} to be had", f"fewer than {missing}",
            )  # fmt: skip

    def slid(self, request: int, first: int) -> None:
        own = self.held[request]
        for i in range(min(first // self.page, len(own))):
            own[i] = -1

    def publish(self, request: int, columns: int) -> None:
        """Of its first columns whole pages may be cached."""
        self.published.update(p for p in self.held[request][: columns // self.page] if p >= 0)

    def evicted(self) -> None:
        self.published &= self.in_use

    def trimmed(self, request: int, columns: int) -> None:
        del self.held[request][-(-columns // self.page) :]

    def released(self, request: int) -> None:
        self.held.pop(request, None)

    def withheld(self, request: int, pages: Collection[int], needed: int) -> None:
        """The request has these pages, and needs so many others."""
        held = needed + len(pages)
        self._wrong(
            "withholds-pages", request,
            f"{_named(request)} holds {_pages(held)}, and its columns need {needed}: nobody else can "
            f"have {sorted(pages)}, in pages of {self.page}",
            str(needed), str(held),
        )  # fmt: skip

    def lost(self, pages: Collection[int], request: int | None = None) -> None:
        """These could not be had though no request holds them and the cache was emptied."""
        lost = sorted(pages)
        if lost:
            self._wrong(
                "leaks-slots", request,
                f"{len(lost)} of {len(self.usable)} pages never came back: {lost[:8]}"
                f"{' and more' if len(lost) > 8 else ''}, in pages of {self.page}, though no request holds "
                "them",
                str(len(self.usable)), str(len(self.usable) - len(lost)),
            )  # fmt: skip

    def _known(self, request: int, pages: Sequence[int]) -> None:
        held = len(self.held.get(request, ()))  # of these some may have gone with the window
        pages = [page for i, page in enumerate(pages) if page != -1 or i >= held]
        strange = [page for page in pages if page not in self.usable]
        if strange:
            what = f"page {strange[0]}, which is no page to be had"
            self._wrong("wrong-pages", request, f"request {request} is given {what}: {list(pages)}")
        if len({*pages}) < len(pages):
            twice = [page for i, page in enumerate(pages) if page in pages[:i]]
            what = f"page {twice[0]} for two places"
            self._wrong("owned-twice", request, f"request {request} is given {what}: {list(pages)}")

    def _wrong(
        self, kind: str, request: int | None, message: str, expected: str = "", actual: str = ""
    ) -> None:
        shown = None if request is None or request < 0 else request
        raise Violation(_failure(kind, message, shown, expected, actual))


def _named(request: int) -> str:
    return f"request {request}" if request >= 0 else "an idle request"


def _pages(count: int) -> str:
    return f"{count} page{'' if count == 1 else 's'}"
