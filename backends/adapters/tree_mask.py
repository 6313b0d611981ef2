"""The tree block of a mask in whichever of the three layouts it has."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import VerifyInput

READS = frozenset({"qo_indptr", "kv_indptr", "custom_mask", "mask_indptr"})
"""Fields that `tree_cells` reads."""


def owner(indptr: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each of `count` entries of a ragged list: the request it belongs to, and its place there."""
    entry = torch.arange(count, device=indptr.device)
    request = torch.searchsorted(indptr, entry, right=True) - 1
    return request, entry - indptr[request]


def most_rows(x: VerifyInput) -> int:
    """Rows of a request at most, by the shape of a table where there is one."""
    if x.retrieve_index is None:
        return int(x.qo_indptr.diff().max())
    return x.retrieve_index.shape[1]


def tree_cells(x: VerifyInput) -> Tensor:
    """(T, Nmax) bool: whether row i sees row j of its own request; False past the rows of a request.

    Prefix cells of a FULL_MASK are skipped: they may be undefined.
    """
    assert x.custom_mask is not None
    assert x.mask_indptr is not None
    assert x.kv_indptr is not None
    rows = x.qo_indptr.diff()
    request, local_row = owner(x.qo_indptr, len(x.draft_token))
    column = torch.arange(most_rows(x), device=rows.device)
    inside = column < rows[request, None]
    if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        items = x.custom_mask.long()[x.mask_indptr[request] + local_row]
        return (items[:, None] >> column & 1).bool() & inside
    skipped = x.kv_indptr.diff() if x.mask_mode is MaskMode.FULL_MASK else torch.zeros_like(rows)
    first = (x.mask_indptr[:-1] + skipped)[request] + local_row * (skipped + rows)[request]
    # Cells past the rows of a request may lie outside the mask: ask for the root's instead.
    return x.custom_mask[first[:, None] + column * inside].bool() & inside
