"""The slot ledger: which physical slot holds which logical column. The harness judges by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import permutation, permuted
from treeproof.contract.layout import KVLayout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Slots = npt.NDArray[np.int64]

_PAGES, _TABLE_ROWS = 101, 102  # address words, so that the two draws are unrelated

SPARE_TABLE_ROWS = 2
"""Rows of `req_to_token` that no request holds."""


@dataclass(frozen=True, eq=False)
class SlotLedger:
    """Ownership of the KV cache in one case.

    `pages[b]` int64 are the pages of request b in logical order, of `page_size` slots each; -1 where
    one has been evicted.
    `request_slots[b]` is the row of request b in `req_to_token`, never b, so that one taken for the
    other shows. `apart`: it is known that every column has a slot and no two share one.
    """

    case: VerifyCase
    pages: tuple[Slots, ...]
    page_size: int
    request_slots: tuple[int, ...]
    apart: bool = False
    table: Slots | None = None
    """The table that an engine keeps from step to step, in place of one made for this step."""

    @classmethod
    def of(cls, case: VerifyCase) -> SlotLedger:
        count = len(case.requests)
        aliased = case.layout.shared_prefix > 0 and count > 1
        apart = not aliased and not any(map(case.evicted_columns, range(count)))
        lengths = [request.prefix_len + request.num_nodes for request in case.requests]
        page, pages = case.layout.page_size, hand_out_pages(case.layout, lengths, case.seed)
        if not apart:
            pages = [own.copy() for own in pages]
            for b, own in enumerate(pages):
                own[: case.evicted_columns(b) // page] = -1
        return cls(case, tuple(pages), page, table_rows(count, case.seed), apart)

    @classmethod
    def named(cls, case: VerifyCase, slots: Sequence[Sequence[int]]) -> SlotLedger:
        """With these slots of each request's columns; row b of `req_to_token` is request b's."""
        import numpy as np  # here and below: to import the contract is to import nothing heavy

        own = tuple(np.array(one, dtype=np.int64) for one in slots)
        return cls(case, own, 1, tuple(range(len(own))))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Columns of each request: P prefix columns and then one a node, in row order."""
        return tuple(request.prefix_len + request.num_nodes for request in self.case.requests)

    @cached_property
    def slots(self) -> tuple[Slots, ...]:
        """(P + N,) int64 each: the slot of every column; -1 where the prefix page has been evicted."""
        import numpy as np

        found, place = [], np.arange(self.page_size)
        for pages, length in zip(self.pages, self.lengths, strict=True):
            own = (pages[:, None] * self.page_size + place).ravel()[:length]
            found.append(np.where(own < 0, -1, own))
        return tuple(found)

    @cached_property
    def flat_pages(self) -> Slots:
        """`pages` of all requests, one after the other."""
        import numpy as np

        return np.concatenate(self.pages)

    @cached_property
    def first_page(self) -> Slots:
        """(B,) where in `flat_pages` those of each request begin."""
        import numpy as np

        counts = np.array([len(own) for own in self.pages])
        begin: Slots = counts.cumsum() - counts
        return begin

    def at(self, request: Slots, column: Slots) -> Slots:
        """The slots of some columns that have not been evicted, (n,) each."""
        page: Slots = self.flat_pages[self.first_page[request] + column // self.page_size]
        return page * self.page_size + column % self.page_size

    def holders(self, slots: Slots) -> tuple[Slots, Slots]:
        """Request and column of some slots (n,) that are held, where all columns are `apart`."""
        import numpy as np

        where = np.zeros(self.flat_pages.max() + 1, dtype=np.int64)
        where[self.flat_pages] = np.arange(len(self.flat_pages))
        found = where[slots // self.page_size]
        request = np.searchsorted(self.first_page, found, side="right") - 1
        page = found - self.first_page[request]
        return request, page * self.page_size + slots % self.page_size

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """`slots` as plain numbers, for what goes through them one by one."""
        return tuple(tuple(own.tolist()) for own in self.slots)

    @cached_property
    def held(self) -> tuple[Slots, Slots, Slots]:
        """Slot, request and column of all that is held, a slot once.

        An aliased prefix slot belongs to the first request that still holds it.
        """
        import numpy as np

        slot, lengths = np.concatenate(self.slots), self.lengths
        request = np.repeat(np.arange(len(lengths)), lengths)
        column = np.concatenate([np.arange(length) for length in lengths])
        there = np.flatnonzero(slot >= 0)
        first = np.empty(slot.max(initial=0) + 1, dtype=np.int64)
        first[slot[there[::-1]]] = there[::-1]  # of several, what is written last stays
        chosen = there[first[slot[there]] == there]
        return slot[chosen], request[chosen], column[chosen]

    @cached_property
    def owner(self) -> dict[int, tuple[int, int]]:
        """Slot to (request, column)."""
        slot, request, column = (part.tolist() for part in self.held)
        return dict(zip(slot, zip(request, column, strict=True), strict=True))

    @cached_property
    def free(self) -> Slots:
        """Slots that hold no logical token: free pages, page tails, the pad page, evicted pages."""
        import numpy as np

        if not self.apart:
            free = np.ones(self.case.layout.num_slots, dtype=bool)
            free[self.held[0]] = False
            return np.flatnonzero(free)
        unused = np.ones(self.case.layout.num_slots // self.page_size, dtype=bool)
        unused[self.flat_pages] = False
        last = np.array([own[-1] for own in self.pages])
        # Of every request's last page, the slots past its last column.
        pages, place = np.concatenate((np.flatnonzero(unused), last)), np.arange(self.page_size)
        used = np.zeros(len(pages), dtype=np.int64)
        used[-len(last) :] = (np.array(self.lengths) - 1) % self.page_size + 1
        return np.sort((pages[:, None] * self.page_size + place)[place >= used[:, None]])

    @cached_property
    def unowned(self) -> tuple[int, ...]:
        """`free` as plain numbers."""
        return tuple(self.free.tolist())

    def row_slots(self, request: int) -> tuple[int, ...]:
        """Slot of each real verify row of a request: columns P to P + N - 1."""
        return tuple(self.slots[request][self.case.requests[request].prefix_len :].tolist())

    @cached_property
    def req_to_token(self) -> tuple[tuple[int, ...], ...]:
        """`token_table` as plain numbers."""
        return tuple(map(tuple, self.token_table.tolist()))

    @property
    def table_shape(self) -> tuple[int, int]:
        """Of `token_table`."""
        return _table_shape(self.case.layout, self.lengths)

    @cached_property
    def token_table(self) -> Slots:
        """The table engines hold: a row a request slot, a column a logical index.

        It is so wide that reading past a request's end finds `page_table_pad`, as it would in an
        engine. Rows that no request holds are padding too.
        """
        if self.table is not None:
            return self.table
        return token_table(self.case.layout, self.slots, self.request_slots)


def token_table(layout: KVLayout, slots: Sequence[Slots], request_slots: Sequence[int]) -> Slots:
    """`SlotLedger.token_table` of any columns; `slots[b]` are the slots of request b's."""
    import numpy as np

    table = np.full(_table_shape(layout, [len(own) for own in slots]), layout.page_table_pad)
    for row, own in zip(request_slots, slots, strict=True):
        table[row, : len(own)] = np.where(own < 0, layout.page_table_pad, own)
    return table


def _table_shape(layout: KVLayout, lengths: Sequence[int]) -> tuple[int, int]:
    """(requests + 2, whole pages, at least 2 more than the longest request needs)."""
    page = layout.page_size
    return len(lengths) + SPARE_TABLE_ROWS, -(-(max(lengths) + 2 * page) // page) * page


def table_rows(requests: int, seed: int) -> tuple[int, ...]:
    """Row of each request in the token table, never its own number."""
    # Each row is followed by another one round a circle of all rows, so none is its own.
    circle = permutation(requests + SPARE_TABLE_ROWS, seed, _TABLE_ROWS)
    after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
    return tuple(after[b] for b in range(requests))


def hand_out_pages(layout: KVLayout, lengths: Sequence[int], seed: int) -> list[Slots]:
    """Page ids of each request in logical order; `lengths` are columns, the prefix included."""
    import numpy as np

    page = layout.page_size
    free = np.arange(1 if layout.pad_slot == 0 else 0, layout.num_slots // page)
    if layout.order == "reversed":
        free = free[::-1]
    elif layout.order == "shuffled":
        free = free[permuted(len(free), seed, _PAGES)]
    shared = layout.shared_prefix // page
    wanted = [-(-length // page) - (shared if b else 0) for b, length in enumerate(lengths)]
    if layout.order == "interleaved":
        # By turns, and in a turn by requests.
        turn = np.concatenate([np.arange(count) for count in wanted])
        request_of = np.repeat(np.arange(len(wanted)), wanted)
        places = np.empty(len(turn), dtype=np.int64)
        places[np.lexsort((request_of, turn))] = np.arange(len(turn))
    else:
        places = np.arange(sum(wanted))
    handed, ends = free[places], list(accumulate(wanted))
    pages = [handed[end - count : end] for end, count in zip(ends, wanted, strict=True)]
    if not shared:
        return pages
    return [pages[0], *(np.concatenate((pages[0][:shared], own)) for own in pages[1:])]
