"""What the drafter runs on over an accepted path, before it drafts again."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.drafting import Extended
from treeproof.contract.inputs import Accepted, VerifyInput


def extend(x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
    """Every field of `Extended`; `hidden` (T, H) are the target's states after the verify rows."""
    note("extend")
    step = torch.arange(accepted.accept_index.shape[1], device=hidden.device)
    front = (x.qo_indptr[:-1, None] + step).clamp(max=len(hidden) - 1)
    return Extended(
        tokens=accepted.tokens,
        hidden=hidden[accepted.accept_index.clamp(min=0)],
        positions=x.seq_lens[:, None] + step,
        out_cache_loc=x.out_cache_loc[front],
    )
