"""Backends `fa2-`, `fa3-`, `fa4-` and `torch-varlen-page-table`: a sequence a row, its prefix and its path.

Each verify row is a query of its own over a list of slots. A build that takes pages of one key reads
them from the cache by that table; for another one they are gathered. A window is the end of a list,
so the kernel needs none.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from treeproof.backends.adapters import row_lists
from treeproof.backends.adapters.flash_backend import described, opened
from treeproof.backends.adapters.flash_call import Keys, Layer
from treeproof.backends.adapters.flash_library import Library
from treeproof.backends.adapters.flash_names import GENERATIONS
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register


def attend(
    generation: str,
    x: VerifyInput,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> Attended:
    """One launch of T sequences of one query each."""
    store_kv(x, k, v, k_cache, v_cache)
    lists = row_lists.row_lists(x, x.shape.window)
    out, lse = opened(generation).attend(
        Layer(x.shape, k_cache, v_cache),
        q,
        torch.arange(len(q) + 1, device=q.device),
        1,
        Keys(lists.table, lists.lengths, page_size=1),
        sinks=x.sinks,
    )
    declared = {
        "kv_indptr": lists.indptr,
        "kv_indices": lists.indices,
        "kv_start": torch.zeros_like(lists.lengths),  # the lists are cut already
    }
    return Attended(out=out, lse=lse, declared=declared)


def _limits(library: Library) -> Capabilities:
    return library.capabilities(windows=True, page_sizes=None, by_rows=True)


for _generation in GENERATIONS:
    register(
        f"{_generation}-page-table",
        **described(_generation, _limits, row_lists.READS | {"sinks"}),
    )(partial(attend, _generation))
