"""The slot ledger: which physical slot holds which logical column. The harness judges by it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import permutation

_PAGES, _TABLE_ROWS = 101, 102  # address words, so that the two draws are unrelated

SPARE_TABLE_ROWS = 2
"""Rows of `req_to_token` that no request holds."""


@dataclass(frozen=True)
class SlotLedger:
    """Ownership of the KV cache in one case.

    `columns[b][c]` is the slot of column c of request b, for the P prefix columns and then one
    column a node, in row order; -1 where the prefix page has been evicted. `request_slots[b]` is the
    row of request b in `req_to_token`, never b, so that one taken for the other shows.
    """

    case: VerifyCase
    columns: tuple[tuple[int, ...], ...]
    request_slots: tuple[int, ...]

    @classmethod
    def of(cls, case: VerifyCase) -> SlotLedger:
        page = case.layout.page_size
        pages = _hand_out_pages(case)
        columns = []
        for b, request in enumerate(case.requests):
            length = request.prefix_len + request.num_nodes
            gone = case.evicted_columns(b)
            columns.append(
                tuple(
                    -1 if c < gone else pages[b][c // page] * page + c % page for c in range(length)
                )
            )
        # Each row is followed by another one round a circle of all rows, so none is its own.
        circle = permutation(len(case.requests) + SPARE_TABLE_ROWS, case.seed, _TABLE_ROWS)
        after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
        return cls(case, tuple(columns), tuple(after[b] for b in range(len(case.requests))))

    @cached_property
    def owner(self) -> dict[int, tuple[int, int]]:
        """Slot to (request, column); an aliased prefix slot belongs to the first that still holds it."""
        owner: dict[int, tuple[int, int]] = {}
        for b, columns in enumerate(self.columns):
            for c, slot in enumerate(columns):
                if slot >= 0:
                    owner.setdefault(slot, (b, c))
        return owner

    @cached_property
    def unowned(self) -> tuple[int, ...]:
        """Slots that hold no logical token: free pages, page tails, the pad page, evicted pages."""
        return tuple(s for s in range(self.case.layout.num_slots) if s not in self.owner)

    def row_slots(self, request: int) -> tuple[int, ...]:
        """Slot of each real verify row of a request: columns P to P + N - 1."""
        return self.columns[request][self.case.requests[request].prefix_len :]

    @cached_property
    def req_to_token(self) -> tuple[tuple[int, ...], ...]:
        """The table engines hold: a row a request slot, a column a logical index.

        Shape (requests + 2, whole pages, at least 2 more than the longest request needs), so that
        reading past a request's end finds `page_table_pad`, as it would in an engine. Rows that no
        request holds are padding too.
        """
        layout = self.case.layout
        width = max(map(len, self.columns)) + 2 * layout.page_size
        width = -(-width // layout.page_size) * layout.page_size
        table = [
            [layout.page_table_pad] * width for _ in range(len(self.columns) + SPARE_TABLE_ROWS)
        ]
        for b, columns in enumerate(self.columns):
            row = table[self.request_slots[b]]
            for c, slot in enumerate(columns):
                row[c] = layout.page_table_pad if slot < 0 else slot
        return tuple(map(tuple, table))


def _hand_out_pages(case: VerifyCase) -> list[list[int]]:
    """Page ids of each request in logical order."""
    layout, page = case.layout, case.layout.page_size
    total = layout.num_slots // page
    first = 1 if layout.pad_slot == 0 else 0
    free = list(range(first, total))
    if layout.order == "reversed":
        free.reverse()
    elif layout.order == "shuffled":
        order = permutation(len(free), case.seed, _PAGES)
        free = [free[i] for i in order]
    shared = layout.shared_prefix // page
    wanted = []
    for b, request in enumerate(case.requests):
        count = -(-(request.prefix_len + request.num_nodes) // page)
        wanted.append(count if b == 0 else count - shared)
    supply = iter(free)
    pages: list[list[int]] = [[] for _ in wanted]
    if layout.order == "interleaved":
        for turn in range(max(wanted)):
            for b, count in enumerate(wanted):
                if turn < count:
                    pages[b].append(next(supply))
    else:
        for b, count in enumerate(wanted):
            pages[b] = [next(supply) for _ in range(count)]
    return [own if b == 0 else pages[0][:shared] + own for b, own in enumerate(pages)]
