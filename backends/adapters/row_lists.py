"""A list of slots a verify row, made of the request's prefix list and the row's line of the mask.

This is what an engine does before it launches a paged kernel on a tree: a row becomes a sequence of
its own, whose pages hold one key. Keys are in logical order, the row itself last. Tables are as wide as
shapes say that a list may be, so that nothing is asked of the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.adapters import tree_mask
from treeproof.contract.inputs import VerifyInput

READS = tree_mask.READS | {"positions", "out_cache_loc", "kv_indices"}
"""Fields that the functions here read."""


@dataclass(frozen=True)
class RowLists:
    """T lists of slots."""

    table: Tensor
    """(T, width) slots from the left; 0 past a list's end."""
    lengths: Tensor
    """(T,)"""

    @property
    def listed(self) -> Tensor:
        """(T, width) bool: cells that belong to a list."""
        return torch.arange(self.table.shape[1], device=self.table.device) < self.lengths[:, None]

    @property
    def indptr(self) -> Tensor:
        """(T+1,) bounds of the lists written one after another."""
        return pad(self.lengths.cumsum(0), (1, 0))

    @property
    def indices(self) -> Tensor:
        """(T * width,) the lists one after another; 0 behind the last of them."""
        size = self.table.numel()
        every = torch.arange(size, device=self.table.device).view(self.table.shape)
        place = self.indptr[:-1, None] + every[:1]
        # What is in no list goes behind, a place for each cell: at one place all would wait for each other.
        place = torch.where(self.listed, place, size + every)
        flat = self.table.new_zeros(2 * size)
        return flat.scatter_(0, place.flatten(), self.table.flatten())[:size]


def path_lists(x: VerifyInput) -> RowLists:
    """Slots of the rows that each row sees, from the root down to itself.

    Ordered by position and not by row, since a child may stand before its parent.
    """
    seen = tree_mask.tree_cells(x)
    request, _ = tree_mask.owner(x.qo_indptr, len(seen))
    column = torch.arange(seen.shape[1], device=seen.device)
    row = (x.qo_indptr[request, None] + column).clamp(max=len(seen) - 1)
    last = torch.iinfo(torch.int64).max
    order = torch.where(seen, x.positions[row], last).argsort(dim=1, stable=True)
    lengths = seen.sum(dim=1)
    lists = RowLists(x.out_cache_loc[row.gather(1, order)], lengths)
    return RowLists((lists.table * lists.listed).clamp(min=0), lengths)


def row_lists(x: VerifyInput, window: int | None = None) -> RowLists:
    """Each row's prefix and path; with a window only the last `window` keys of them.

    Without one the cells of evicted pages are there, at a slot that is nobody's to read.
    """
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    path = path_lists(x)
    request, _ = tree_mask.owner(x.qo_indptr, len(path.lengths))
    prefix = x.kv_indptr.diff()[request]
    whole = prefix + path.lengths
    lengths = whole if window is None else whole.clamp(max=window)
    width = x.req_to_token.shape[1] + path.table.shape[1]
    step = torch.arange(min(width, window or width), device=whole.device)
    index = (whole - lengths)[:, None] + step  # (T, width) logical
    in_prefix = index < prefix[:, None]
    # `kv_indices` is empty where all prefixes are.
    slots = pad(x.kv_indices, (0, 1))
    before = slots[torch.where(in_prefix, x.kv_indptr[request, None] + index, 0)]
    depth = (index - prefix[:, None]).clamp(0, path.table.shape[1] - 1)
    lists = RowLists(torch.where(in_prefix, before, path.table.gather(1, depth)), lengths)
    return RowLists((lists.table * lists.listed).clamp(min=0), lengths)
