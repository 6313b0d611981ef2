"""The tree block of a mask in whichever of the three layouts it has."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import VerifyInput

READS = frozenset({"qo_indptr", "kv_indptr", "custom_mask", "mask_indptr"})
"""Fields that `tree_cells` reads."""


def owner(indptr: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of a ragged list: the request it belongs to, and its place there."""
    lengths = indptr.diff()
    request = torch.arange(len(lengths), device=indptr.device).repeat_interleave(lengths)
    return request, torch.arange(len(request), device=indptr.device) - indptr[request]


def tree_cells(x: VerifyInput) -> Tensor:
    """(T, Nmax) bool: whether row i sees row j of its own request; False past the rows of a request.

    Prefix cells of a FULL_MASK are skipped: they may be undefined.
    """
    assert x.custom_mask is not None
    assert x.mask_indptr is not None
    assert x.kv_indptr is not None
    rows = x.qo_indptr.diff()
    request, local_row = owner(x.qo_indptr)
    column = torch.arange(int(rows.max()), device=rows.device)
    inside = column < rows[request, None]
    if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        items = x.custom_mask.long()[x.mask_indptr[request] + local_row]
        return (items[:, None] >> column & 1).bool() & inside
    skipped = x.kv_indptr.diff() if x.mask_mode is MaskMode.FULL_MASK else torch.zeros_like(rows)
    first = (x.mask_indptr[:-1] + skipped)[request] + local_row * (skipped + rows)[request]
    # Cells past the rows of a request may lie outside the mask: ask for the root's instead.
    return x.custom_mask[first[:, None] + column * inside].bool() & inside
