"""The stage a backend is launched on: ownership of slots and rows as tensors on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.ledger import SlotLedger
from treeproof.generate.layer import layer_parameters

TORCH_DTYPE = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True, eq=False)
class Scene:
    """One case on one device, as the slot ledger sees it (never as `out_cache_loc` says)."""

    case: VerifyCase
    ledger: SlotLedger
    device: torch.device

    @classmethod
    def of(cls, case: VerifyCase, device: str = "cpu") -> Scene:
        return cls(case, SlotLedger.of(case), torch.device(device))

    def on_device(self, values: npt.NDArray[Any]) -> Tensor:
        """A tensor of its own on the device of the scene."""
        return torch.tensor(values, device=self.device)

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPE[self.case.shape.dtype]

    @property
    def stored_dtype(self) -> torch.dtype:
        """What the caches hold: numbers in the case's dtype, or codes."""
        return TORCH_DTYPE[self.case.shape.kv_dtype or self.case.shape.dtype]

    @cached_property
    def layer(self) -> LayerParameters:
        """Sinks, slopes and scales of the case, on the device of the scene."""
        return layer_parameters(self.case, str(self.device))

    @cached_property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """(request, local row) of each row of the launch, padded ones included."""
        return tuple(
            (b, r) for b, req in enumerate(self.case.requests) for r in range(req.num_rows)
        )

    @cached_property
    def real(self) -> tuple[int, ...]:
        """Flat indices of the rows that hold a node."""
        return tuple(np.flatnonzero(self._held_rows).tolist())

    @cached_property
    def _held_rows(self) -> npt.NDArray[np.bool_]:
        """(T,) bool: the row holds a node."""
        counts = [(request.num_nodes, request.pad_rows) for request in self.case.requests]
        return np.repeat([True, False] * len(counts), np.ravel(counts))

    def _by_row(self, of_nodes: Sequence[npt.ArrayLike], padding: int) -> Tensor:
        """(T,) int64 from one list a request, in row order; padded rows get `padding`."""
        rows = np.full(len(self._held_rows), padding, dtype=np.int64)
        rows[self._held_rows] = np.concatenate(of_nodes)
        return self.on_device(rows)

    @cached_property
    def real_index(self) -> Tensor:
        """(real rows,) int64."""
        return self.on_device(np.flatnonzero(self._held_rows))

    @cached_property
    def node_rows(self) -> Tensor:
        """(real rows,) int64: row of the launch of each node, requests one after the other."""
        rows = [
            np.array(request.row_of_node) + first
            for request, first in zip(self.case.requests, self.case.qo_indptr, strict=False)
        ]
        return self.on_device(np.concatenate(rows))

    @cached_property
    def row_slot(self) -> Tensor:
        """(T,) ledger slot of each row; -1 on padding."""
        return self._by_row(
            [
                slots[request.prefix_len :]
                for slots, request in zip(self.ledger.slots, self.case.requests, strict=True)
            ],
            padding=-1,
        )

    @cached_property
    def padding(self) -> Tensor:
        """(T,) bool."""
        return self.row_slot < 0

    @cached_property
    def true_positions(self) -> Tensor:
        """(T,) P + depth of each row by the drawn tree; 0 on padding."""
        return self._by_row(
            [
                np.array(request.tree.depth)[list(request.node_of_row)] + request.prefix_len
                for request in self.case.requests
            ],
            padding=0,
        )

    @cached_property
    def tree_slots(self) -> Tensor:
        """Slots of all real rows."""
        return self.row_slot[self.real_index]

    @cached_property
    def columns(self) -> Columns:
        """All columns of all requests, one after the other."""
        lengths = [len(own) for own in self.ledger.slots]
        counts, total = self.on_device(np.array(lengths)), sum(lengths)
        request = torch.arange(len(lengths), device=self.device)
        request = request.repeat_interleave(counts, output_size=total)
        column = torch.arange(total, device=self.device) - (counts.cumsum(0) - counts)[request]
        slot = self.on_device(np.concatenate(self.ledger.slots))
        return Columns(slot, request, column, column < self.prefix_lens[request])

    @cached_property
    def prefix_lens(self) -> Tensor:
        """(B,) P of each request, as drawn."""
        return self.on_device(np.array([request.prefix_len for request in self.case.requests]))

    @cached_property
    def prefix_columns(self) -> Columns:
        """The P prefix columns of each request, one after the other; evicted ones have slot -1."""
        return self.columns.of(self.columns.in_prefix.nonzero()[:, 0])

    @cached_property
    def held(self) -> Columns:
        """The columns that are held, a slot once: an aliased one as the first request has it."""
        every = self.columns
        place = torch.arange(len(every.slot), device=self.device)
        first = torch.full((self._slots,), len(place), device=self.device)
        # Evicted columns are sent to where nobody asks.
        target = torch.where(every.slot < 0, self._slots - 1, every.slot)
        first.scatter_reduce_(0, target, place, "amin")
        return every.of(((every.slot >= 0) & (first[target] == place)).nonzero()[:, 0])

    @property
    def _slots(self) -> int:
        """One more than there are: a step's own slots may lie outside the cache of its case."""
        most = max(int(own.max(initial=0)) for own in self.ledger.slots)
        return max(self.case.layout.num_slots, most + 1) + 1

    @cached_property
    def prefix(self) -> Columns:
        """The prefix columns that are held, a slot once."""
        return self.held.of(self.held.in_prefix.nonzero()[:, 0])

    @cached_property
    def owned(self) -> Tensor:
        """(num_slots,) bool: the slot holds a logical token."""
        owned = torch.zeros(self.case.layout.num_slots, dtype=torch.bool, device=self.device)
        owned[self.held.slot] = True
        return owned

    @cached_property
    def unnamed(self) -> Tensor:
        """(num_slots,) bool: in a page that no table cell names, padding cells included."""
        layout = self.case.layout
        named = self.owned.clone()
        for padding in (layout.page_table_pad, layout.pad_slot):
            if padding >= 0:
                named[padding] = True
        pages = named.view(-1, layout.page_size).any(1)
        return ~pages.repeat_interleave(layout.page_size) & ~self.owned


@dataclass(frozen=True)
class Columns:
    """Logical columns, (n,) each: slot, request, column, and whether it belongs to the prefix."""

    slot: Tensor
    request: Tensor
    column: Tensor
    in_prefix: Tensor

    def of(self, index: Tensor) -> Columns:
        return Columns(*(part[index] for part in vars(self).values()))
