"""Backends `fa2-`, `fa3-`, `fa4-` and `torch-varlen-swa-window`: a sequence a row, windows by the kernel.

A list ends in the row itself, and the kernel counts its window from the end of the list: by logical
index, whatever row or slot a key has.
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
    """One launch of T sequences of one query each, over whole lists."""
    store_kv(x, k, v, k_cache, v_cache)
    lists = row_lists.row_lists(x)
    out, lse = opened(generation).attend(
        Layer(x.shape, k_cache, v_cache),
        q,
        torch.arange(len(q) + 1, device=q.device),
        1,
        Keys(lists.table, lists.lengths, page_size=1),
        window=x.shape.window,
        sinks=x.sinks,
    )
    declared = {"kv_indptr": lists.indptr, "kv_indices": lists.indices}
    return Attended(out=out, lse=lse, declared=declared)


def _limits(library: Library) -> Capabilities | str:
    if not library.windows:
        return (
            f"{library.name.module} {library.version} was built without sliding windows "
            "(local attention); the page-table backend of it takes windows"
        )
    return library.capabilities(windows=True, page_sizes=None, by_rows=True)


for _generation in GENERATIONS:
    register(
        f"{_generation}-swa-window",
        **described(_generation, _limits, row_lists.READS | {"sinks"}),
    )(partial(attend, _generation))
