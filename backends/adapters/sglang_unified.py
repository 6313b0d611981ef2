"""Backend `sglang-unified`: SGLang's Triton `extend_attention_fwd_unified`, its deterministic form.

One list of slots a request holds prefix and verify rows alike, put together by SGLang's
`build_unified_kv_indices`; keys and values of both come from the cache. The tree is a FULL_MASK of
which every cell is read, prefix cells too. With a window the prefix part is cut as SGLang's engine
cuts it, but the mask is not: each row of it is read as if it were as narrow as the list. That, and
a window measured from the row, are known defects of SGLang 0.5.23 (its pull request 39287), left as
they are.

Compiled on CUDA; on the CPU in Triton's interpreter, whose matrix product misreads bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.sglang_extend import MODULE, capabilities
from treeproof.backends.adapters.sglang_prefix import prefix_lists
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Numerics
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register


@register(
    "sglang-unified",
    consumes={
        "qo_indptr",
        "out_cache_loc",
        "custom_mask",
        "mask_indptr",
        "kv_indptr",
        "kv_indices",
    },
    # Keys of padded rows are read from their slot, though their weight is 0: -1 is no slot.
    capabilities=replace(
        capabilities(), tree_kv="cache", unfilled_prefix_mask=False, pad_slots={0}
    ),
    numerics=Numerics(p="input"),
    requires=sglang_loader.REQUIRES,
    kernels={"_fwd_kernel_unified"},
)
class SglangUnified:
    """One launch for the whole batch; it returns no log-sum-exp."""

    def __init__(self) -> None:
        kernels = sglang_loader.load(MODULE)
        self._forward: Any = kernels.extend_attention_fwd_unified
        self._unite: Any = kernels.build_unified_kv_indices

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        store_kv(x, k, v, k_cache, v_cache)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        prefix_indptr, prefix_indices, skipped = prefix_lists(x)
        rows = x.qo_indptr.diff()
        kv_indptr, kv_indices, prefix_lens = self._unite(
            prefix_indptr, prefix_indices, x.qo_indptr[:-1], rows, x.out_cache_loc, len(rows)
        )
        window = x.shape.window
        # Rows past the end of a tile see no key, and NumPy warns of what they come to.
        with np.errstate(divide="ignore", invalid="ignore"):
            self._forward(
                q,
                out,
                k_cache,
                v_cache,
                1.0,  # k_scale
                1.0,  # v_scale
                x.qo_indptr,
                kv_indptr,
                kv_indices,
                prefix_lens.to(torch.int32),
                int(rows.max()),
                custom_mask=x.custom_mask,
                mask_indptr=x.mask_indptr,
                sm_scale=x.shape.score_scale,
                sliding_window_size=-1 if window is None else window - 1,
                window_start_pos=None if window is None else skipped,
            )
        return Attended(out=out)
