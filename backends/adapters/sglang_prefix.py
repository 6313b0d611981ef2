"""The prefix lists that SGLang's Triton attention is handed: cut to what the root's window reaches."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput


def prefix_lists(x: VerifyInput) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds (B+1,), slots and number of keys left out in front (B,) of each prefix list."""
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    lengths = x.kv_indptr.diff()
    if x.shape.window is None:
        return x.kv_indptr, x.kv_indices, torch.zeros_like(lengths)
    kept = lengths.clamp(max=x.shape.window - 1)
    skipped = lengths - kept
    request = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    column = torch.arange(len(request), device=lengths.device) - x.kv_indptr[request]
    indptr = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
    return indptr, x.kv_indices[column >= skipped[request]], skipped
