"""The slot ledger: which physical slot holds which logical column. The harness judges by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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

    `slots[b]` (P + N,) int64 holds the slot of each column of request b: the P prefix columns and
    then one column a node, in row order; -1 where the prefix page has been evicted.
    `request_slots[b]` is the row of request b in `req_to_token`, never b, so that one taken for the
    other shows.
    """

    case: VerifyCase
    slots: tuple[Slots, ...]
    request_slots: tuple[int, ...]
    table: Slots | None = None
    """The table that an engine keeps from step to step, in place of one made for this step."""

    @classmethod
    def of(cls, case: VerifyCase) -> SlotLedger:
        import numpy as np  # here and below: to import the contract is to import nothing heavy

        page = case.layout.page_size
        lengths = [request.prefix_len + request.num_nodes for request in case.requests]
        slots = []
        for b, pages in enumerate(hand_out_pages(case.layout, lengths, case.seed)):
            own = (pages[:, None] * page + np.arange(page)).ravel()[: lengths[b]]
            own[: case.evicted_columns(b)] = -1
            slots.append(own)
        return cls(case, tuple(slots), table_rows(len(case.requests), case.seed))

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

        slot = np.concatenate(self.slots)
        lengths = [len(own) for own in self.slots]
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
    def unowned(self) -> tuple[int, ...]:
        """Slots that hold no logical token: free pages, page tails, the pad page, evicted pages."""
        import numpy as np

        free = np.ones(self.case.layout.num_slots, dtype=bool)
        free[self.held[0]] = False
        return tuple(np.flatnonzero(free).tolist())

    def row_slots(self, request: int) -> tuple[int, ...]:
        """Slot of each real verify row of a request: columns P to P + N - 1."""
        return tuple(self.slots[request][self.case.requests[request].prefix_len :].tolist())

    @cached_property
    def req_to_token(self) -> tuple[tuple[int, ...], ...]:
        """`token_table` as plain numbers."""
        return tuple(map(tuple, self.token_table.tolist()))

    @cached_property
    def token_table(self) -> Slots:
        """The table engines hold: a row a request slot, a column a logical index.

        Shape (requests + 2, whole pages, at least 2 more than the longest request needs), so that
        reading past a request's end finds `page_table_pad`, as it would in an engine. Rows that no
        request holds are padding too.
        """
        if self.table is not None:
            return self.table
        return token_table(self.case.layout, self.slots, self.request_slots)


def token_table(layout: KVLayout, slots: Sequence[Slots], request_slots: Sequence[int]) -> Slots:
    """`SlotLedger.token_table` of any columns; `slots[b]` are the slots of request b's."""
    import numpy as np

    width = max(map(len, slots)) + 2 * layout.page_size
    width = -(-width // layout.page_size) * layout.page_size
    table = np.full((len(slots) + SPARE_TABLE_ROWS, width), layout.page_table_pad)
    for row, own in zip(request_slots, slots, strict=True):
        table[row, : len(own)] = np.where(own < 0, layout.page_table_pad, own)
    return table


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
    pages = np.split(free[places], np.cumsum(wanted)[:-1])
    return [
        own if b == 0 else np.concatenate((pages[0][:shared], own)) for b, own in enumerate(pages)
    ]
