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
from treeproof.generate.columns import Columns, columns
from treeproof.generate.layer import layer_parameters
from treeproof.generate.sending import sent
from treeproof.properties.answers import Answers

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
    parameters: LayerParameters | None = None
    """What the layer holds beside its activations; None: what the case's seed draws."""

    @classmethod
    def of(cls, case: VerifyCase, device: str = "cpu") -> Scene:
        return cls(case, SlotLedger.of(case), torch.device(device))

    def on_device(self, values: npt.NDArray[Any]) -> Tensor:
        """A tensor of its own on the device of the scene, which nobody waits for."""
        return sent(values, self.device)

    @cached_property
    def answers(self) -> Answers:
        """What was asked of the device and has not been looked at."""
        return Answers()

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPE[self.case.shape.dtype]

    @property
    def stored_dtype(self) -> torch.dtype:
        """What the caches hold: numbers in the case's dtype, or codes."""
        return TORCH_DTYPE[self.case.shape.kv_dtype or self.case.shape.dtype]

    @cached_property
    def layer(self) -> LayerParameters:
        """Sinks, slopes and scales of the layer, on the device of the scene."""
        return self.parameters or layer_parameters(self.case, str(self.device))

    @cached_property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """(request, local row) of each row of the launch, padded ones included."""
        return tuple(
            (b, r) for b, req in enumerate(self.case.requests) for r in range(req.num_rows)
        )

    @cached_property
    def num_rows(self) -> int:
        """T, rows of the launch, padded ones included."""
        return self.case.num_rows

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
    def padded_index(self) -> Tensor:
        """(padded rows,) int64."""
        return self.on_device(np.flatnonzero(~self._held_rows))

    @cached_property
    def node_rows(self) -> Tensor:
        """(real rows,) int64: row of the launch of each node, requests one after the other."""
        nodes = self.case.nodes
        return self.on_device(nodes.row + np.array(self.case.qo_indptr)[nodes.request])

    @cached_property
    def row_slot(self) -> Tensor:
        """(T,) ledger slot of each row; -1 on padding."""
        request, column = self.tree_columns
        return self._by_row([self.ledger.at(request, column)], padding=-1)

    @cached_property
    def tree_columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(real rows,) each: the request and the column of every real row, on the host."""
        requests, number = self.case.requests, self.case.nodes.request
        nodes = np.array([request.num_nodes for request in requests])
        shift = np.array([r.prefix_len for r in requests]) - (nodes.cumsum() - nodes)
        return number, np.arange(len(number)) + shift[number]

    @cached_property
    def home(self) -> Tensor:
        """(T,) `row_slot`, 0 on padding."""
        return self.row_slot.clamp(min=0)

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
        return columns(self.ledger, str(self.device))

    @cached_property
    def prefix_lens(self) -> Tensor:
        """(B,) P of each request, as drawn."""
        return self.on_device(np.array([request.prefix_len for request in self.case.requests]))

    @cached_property
    def prefix_columns(self) -> Columns:
        """The P prefix columns of each request, one after the other; evicted ones have slot -1."""
        total = sum(request.prefix_len for request in self.case.requests)
        trees = [request.num_nodes for request in self.case.requests]
        before = np.cumsum(trees) - trees  # columns of trees
        shift = self.on_device(before).repeat_interleave(self.prefix_lens, output_size=total)
        return self.columns.of(torch.arange(total, device=self.device) + shift)

    @cached_property
    def held(self) -> Columns:
        """The columns that are held, a slot once: an aliased one as the first request has it."""
        every = self.columns
        if self.ledger.apart:
            return every
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
        if self.ledger.apart:
            return self.prefix_columns
        return self.held.of(self.held.in_prefix.nonzero()[:, 0])

    @cached_property
    def owned(self) -> Tensor:
        """(num_slots,) bool: the slot holds a logical token."""
        owned = torch.zeros(self.case.layout.num_slots, dtype=torch.bool, device=self.device)
        return owned.index_fill_(0, self.held.slot, True)

    @cached_property
    def free(self) -> Tensor:
        """Slots that hold no logical token."""
        return self.on_device(self.ledger.free)

    @cached_property
    def unnamed(self) -> Tensor:
        """(num_slots,) bool: in a page that no table cell names, padding cells included."""
        layout = self.case.layout
        named = self.owned.clone()
        for padding in (layout.page_table_pad, layout.pad_slot):
            if padding >= 0:
                named[padding].fill_(True)
        pages = named.view(-1, layout.page_size).any(1)
        return ~pages.repeat_interleave(layout.page_size) & ~self.owned
