"""Backends `fa2-`, `fa3-`, `fa4-` and `torch-varlen-cascade`: the shared prefix once, then each row's own path.

As SGLang verifies a tree: all rows of a request over the pages of its prefix, then T sequences of one
query over the slots of a path, and the two results merged by their log-sum-exp. A build that takes no
pages is handed gathered keys in both passes.
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
from treeproof.backends.adapters.tree_mask import most_rows
from treeproof.backends.cascade import merge
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
    """Two launches; both outputs come in the dtype of `q` and are merged in float32."""
    store_kv(x, k, v, k_cache, v_cache)
    flash, layer = opened(generation), Layer(x.shape, k_cache, v_cache)
    assert x.page_table is not None
    assert x.cache_seqlens is not None
    prefix = Keys(x.page_table, x.cache_seqlens, x.kv.page_size)
    path = row_lists.path_lists(x)
    above, above_lse = flash.attend(layer, q, x.qo_indptr, most_rows(x), prefix)
    # A sink counts once in the sum, so one of the two passes holds it.
    below, below_lse = flash.attend(
        layer,
        q,
        torch.arange(len(q) + 1, device=q.device),
        1,
        Keys(path.table, path.lengths, page_size=1),
        sinks=x.sinks,
    )
    out, lse = merge(above.float(), above_lse, below.float(), below_lse)
    return Attended(out=out.to(q.dtype), lse=lse, declared=_declared(x, prefix, path))


def _declared(x: VerifyInput, prefix: Keys, path: row_lists.RowLists) -> dict[str, Tensor]:
    """What a row reads in both passes, as one list: its request's prefix and its own path."""
    step = torch.arange(prefix.table.shape[1] * prefix.page_size, device=path.table.device)
    slots = prefix.table[:, step // prefix.page_size] * prefix.page_size + step % prefix.page_size
    request = torch.arange(len(prefix.lengths), device=step.device)
    request = request.repeat_interleave(x.qo_indptr.diff())
    shared = (step < prefix.lengths[:, None])[request]
    lengths = prefix.lengths[request] + path.lengths
    whole = torch.cat([slots[request], path.table], dim=1)
    return {
        "kv_indptr": torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        "kv_indices": whole[torch.cat([shared, path.listed], dim=1)],
    }


def _limits(library: Library) -> Capabilities:
    # Rows of a tree start at different keys of a windowed prefix, which they would not share.
    return library.capabilities(windows=False, page_sizes=library.page_sizes or None)


for _generation in GENERATIONS:
    register(
        f"{_generation}-cascade",
        **described(
            _generation,
            _limits,
            row_lists.READS | {"page_table", "cache_seqlens", "sinks"},
            merges=1,
        ),
    )(partial(attend, _generation))
