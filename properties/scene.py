"""The stage a backend is launched on: ownership of slots and rows as tensors on one device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class Scene:
    """One case on one device, as the slot ledger sees it (never as `out_cache_loc` says)."""

    case: VerifyCase
    ledger: SlotLedger
    device: torch.device

    @classmethod
    def of(cls, case: VerifyCase, device: str = "cpu") -> Scene:
        return cls(case, SlotLedger.of(case), torch.device(device))

    def _long(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

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
        return tuple(i for i, (b, r) in enumerate(self.rows) if r < self.case.requests[b].num_nodes)

    @cached_property
    def real_index(self) -> Tensor:
        """(real rows,) int64."""
        return self._long(list(self.real))

    @cached_property
    def row_slot(self) -> Tensor:
        """(T,) ledger slot of each row; -1 on padding."""
        slots = []
        for b, request in enumerate(self.case.requests):
            slots += [*self.ledger.row_slots(b), *[-1] * request.pad_rows]
        return self._long(slots)

    @cached_property
    def padding(self) -> Tensor:
        """(T,) bool."""
        return self.row_slot < 0

    @cached_property
    def true_positions(self) -> Tensor:
        """(T,) P + depth of each row by the drawn tree; 0 on padding."""
        positions = []
        for request in self.case.requests:
            positions += [request.prefix_len + request.tree.depth[n] for n in request.node_of_row]
            positions += [0] * request.pad_rows
        return self._long(positions)

    @cached_property
    def tree_slots(self) -> Tensor:
        """Slots of all real rows."""
        return self.row_slot[self.real_index]

    @cached_property
    def prefix(self) -> tuple[tuple[int, int, int], ...]:
        """(slot, request, column) of every prefix key that is held, aliased ones once."""
        found, seen = [], set()
        for b, request in enumerate(self.case.requests):
            for column, slot in enumerate(self.ledger.columns[b][: request.prefix_len]):
                if slot >= 0 and slot not in seen:
                    seen.add(slot)
                    found.append((slot, b, column))
        return tuple(found)

    @cached_property
    def owned(self) -> Tensor:
        """(num_slots,) bool: the slot holds a logical token."""
        owned = torch.zeros(self.case.layout.num_slots, dtype=torch.bool, device=self.device)
        owned[self._long(list(self.ledger.owner))] = True
        return owned

    @cached_property
    def unnamed(self) -> Tensor:
        """(num_slots,) bool: in a page that no table cell names, padding cells included."""
        page = self.case.layout.page_size
        named = {slot // page for row in self.ledger.req_to_token for slot in row if slot >= 0}
        if self.case.layout.pad_slot >= 0:
            named.add(self.case.layout.pad_slot // page)
        unnamed = torch.ones(self.case.layout.num_slots, dtype=torch.bool, device=self.device)
        for p in named:
            unnamed[p * page : (p + 1) * page] = False
        return unnamed & ~self.owned
