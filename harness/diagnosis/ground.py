"""A case spelled out row by row: where its keys lie and who comes before whom."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.target_model import TargetModel
from treeproof.diagnosis.kept import OneOfEqual
from treeproof.generate.data import logical_data
from treeproof.properties.kv import Move, moves
from treeproof.properties.probes.launch import Contents
from treeproof.properties.probes.random_data import QUIET, contents
from treeproof.properties.scene import Scene
from treeproof.properties.tables import Slots
from treeproof.properties.traversal import Prediction, predictions

_MOST_KEPT = 4096


class Key(NamedTuple):
    """One key that a row reads: its logical index, and the slots its K and its V come from."""

    at: int
    k: int
    v: int


Seen = tuple[tuple[Key, ...], ...]
"""Keys of each real row of the launch, in the order of `Ground.rows`."""

_KEYS: OneOfEqual[tuple[Key, ...]] = OneOfEqual(1 << 18)


def as_keys(keys: Iterable[Key]) -> tuple[Key, ...]:
    """What a row reads. Most statements differ from another in few rows; what follows from the
    keys of the others is worked out once."""
    return _KEYS.of(tuple(keys))


@dataclass(frozen=True)
class Row:
    """One real row: request, row in the request, row in the launch, depth, rows from the root down."""

    b: int
    row: int
    flat: int
    depth: int
    path: tuple[int, ...]
    prefix: int

    @property
    def position(self) -> int:
        return self.prefix + self.depth

    @property
    def parent(self) -> int:
        """Row of the parent; -1 for the root."""
        return self.path[-2] if len(self.path) > 1 else -1


class _Positions(NamedTuple):
    """All that random contents need to know of a verify input."""

    positions: torch.Tensor


@dataclass(frozen=True)
class Ground:
    """What a case itself determines; hypotheses are written in these terms."""

    scene: Scene
    leaves: int | None
    model: TargetModel | None = None
    """What a whole engine says it runs."""

    @classmethod
    def of(
        cls, case: VerifyCase, leaves: int | None = 12, model: TargetModel | None = None
    ) -> Ground:
        return _ground(case, leaves, model)

    @property
    def case(self) -> VerifyCase:
        return self.scene.case

    @property
    def requests(self) -> tuple[Request, ...]:
        return self.case.requests

    @property
    def window(self) -> int | None:
        return self.case.shape.window

    @property
    def page(self) -> int:
        return self.case.layout.page_size

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for rows in self.by_request for row in rows)

    @cached_property
    def by_request(self) -> tuple[tuple[Row, ...], ...]:
        found = []
        for b, request in enumerate(self.requests):
            tree = request.tree
            found.append(
                tuple(
                    Row(
                        b,
                        row,
                        self.case.qo_indptr[b] + row,
                        tree.depth[node],
                        tuple(request.row_of_node[n] for n in tree.path(node)),
                        request.prefix_len,
                    )
                    for row, node in enumerate(request.node_of_row)
                )
            )
        return tuple(found)

    def row(self, b: int, row: int) -> Row:
        return self.by_request[b][row]

    # --- slots ---------------------------------------------------------------------------------

    def slot(self, b: int, column: int) -> int:
        """What the token table says of a column: past the end and where evicted, its padding.

        A cell that holds -1 names the last slot, as a negative index does; so does one outside.
        """
        table = self.scene.ledger.req_to_token[self.scene.ledger.request_slots[b]]
        slot = table[column] if 0 <= column < len(table) else -1
        return slot if slot >= 0 else self.case.layout.num_slots - 1

    def paged_slot(self, b: int, column: int) -> int:
        """The same out of whole pages: past the end, the tail of the last page."""
        first = self.slot(b, column // self.page * self.page)
        return first // self.page * self.page + column % self.page

    def key(self, b: int, column: int, index: int | None = None) -> Key:
        slot = self.slot(b, column)
        return Key(column if index is None else index, slot, slot)

    def prefix(self, b: int) -> tuple[Key, ...]:
        """The prefix keys of a request."""
        return self._prefixes[b]

    @cached_property
    def _prefixes(self) -> tuple[tuple[Key, ...], ...]:
        return tuple(
            tuple(self.key(b, c) for c in range(request.prefix_len))
            for b, request in enumerate(self.requests)
        )

    def own(self, b: int, row: int) -> Key:
        """The key of a real row."""
        return self._own[b][row]

    @cached_property
    def _own(self) -> tuple[tuple[Key, ...], ...]:
        return tuple(
            tuple(
                Key(row.position, slot, slot)
                for row, slot in zip(rows, self.scene.ledger.row_slots(b), strict=True)
            )
            for b, rows in enumerate(self.by_request)
        )

    @cached_property
    def row_slot(self) -> list[int]:
        """Slot of each row of the launch; -1 on padding."""
        slots: list[int] = self.scene.row_slot.tolist()
        return slots

    @cached_property
    def bare(self) -> Slots:
        """(num_slots,) slot whose own V each slot holds before a launch; -1 for the tree's slots,
        which hold stale contents, and for what nobody holds."""
        origin = np.arange(self.case.layout.num_slots)
        origin[~self.scene.owned.cpu().numpy()] = -1
        origin[self.scene.tree_slots.cpu().numpy()] = -1
        return origin

    # --- what rows read ------------------------------------------------------------------------

    def reads(self, row: Row, rows: Sequence[int] | None = None) -> tuple[Key, ...]:
        """The whole prefix and the given rows of the request (the path where None)."""
        chosen = row.path if rows is None else rows
        return as_keys((*self.prefix(row.b), *(self.own(row.b, r) for r in chosen)))

    def cut(self, keys: Sequence[Key], position: int) -> tuple[Key, ...]:
        """Those inside the window of a query at this position."""
        if self.window is None:
            return as_keys(keys)
        return as_keys(key for key in keys if position - self.window < key.at)

    # --- what is worked out once ---------------------------------------------------------------

    def kept(self, place: Hashable, compute: Callable[[], Any]) -> Any:
        """What `compute` gave for this place when it was first asked for."""
        if place not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[place] = compute()
        return self._kept[place]

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    # --- data and rounds -----------------------------------------------------------------------

    @cached_property
    def contents(self) -> Contents:
        """The quiet random data of the case, as a right build lays it out."""
        data = logical_data(self.case)
        x = cast(VerifyInput, _Positions(self.scene.true_positions))
        return contents(self.scene, x, data, QUIET)

    @cached_property
    def rounds(self) -> tuple[Prediction, ...]:
        return tuple(predictions(self.case, self.leaves))

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return moves(self.scene, self.rounds)


@lru_cache(maxsize=64)
def _ground(case: VerifyCase, leaves: int | None, model: TargetModel | None) -> Ground:
    return Ground(Scene.of(case), leaves, model)
