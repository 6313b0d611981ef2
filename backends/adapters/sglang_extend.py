"""Backend `sglang-extend`: SGLang's Triton `extend_attention_fwd`, as its verify step launches it.

The prefix is read from the cache by one list of slots a request (any page size: the lists name
slots), the verify rows' own K and V from operands, the tree from a FULL_MASK whose prefix cells the
kernel skips. With a window the lists are cut to the keys that the root reaches, as SGLang's engine
cuts them. The kernel measures the window from the row and not from the depth, so a branching tree
loses keys: a known defect of SGLang 0.5.23 (its pull request 39287), left as it is.

Compiled on CUDA; on the CPU in Triton's interpreter, whose matrix product misreads bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.sglang_prefix import prefix_lists
from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register

MODULE = "sglang.kernels.ops.attention.extend_attention"


_HEAD_DIMS = frozenset({64, 80, 96, 128, 192, 256})
"""192 is computed in two parts; others are padded to a power of two."""


def capabilities() -> Capabilities:
    """What both forms of the kernel do, on this machine."""
    on_cpu = interpreted()
    return Capabilities(
        # Tiles of keys past a tile of rows are left out, as if the mask were triangular.
        row_order="parent-first",
        # `sliding_window_size` is W - 1, and 0 means that there is none.
        min_window=2,
        # Compiled, products of float32 are rounded to TF32.
        dtypes={"float32", "float16"} if on_cpu else {"bfloat16", "float16"},
        devices={"cpu"} if on_cpu else {"cuda"},
        # Nobody serves the small ones. Compiled (Triton 3.6, H200), values of 32 lanes under keys of
        # 64 now and then read shared memory out of bounds.
        head_dims={16, 32, *_HEAD_DIMS} if on_cpu else _HEAD_DIMS,
        mask_modes={"FULL_MASK"},
        cache_layouts={"NHD", "layered", "interleaved"},
        nan_safe=False,
        tree_kv="operand",
    )


@register(
    "sglang-extend",
    consumes={
        "qo_indptr",
        "out_cache_loc",
        "custom_mask",
        "mask_indptr",
        "kv_indptr",
        "kv_indices",
    },
    capabilities=capabilities(),
    numerics=Numerics(p="input"),
    requires=sglang_loader.REQUIRES,
    kernels={"_fwd_kernel"},
)
class SglangExtend:
    """One launch for the whole batch."""

    def __init__(self) -> None:
        self._forward: Any = sglang_loader.load(MODULE).extend_attention_fwd

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """The log-sum-exp comes in natural log, float32."""
        store_kv(x, k, v, k_cache, v_cache)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        kv_indptr, kv_indices, skipped = prefix_lists(x)
        window = x.shape.window
        # Rows past the end of a tile see no key, and NumPy warns of their logarithm.
        with np.errstate(divide="ignore", invalid="ignore"):
            self._forward(
                q,
                k,
                v,
                out,
                k_cache,
                v_cache,
                x.qo_indptr,
                kv_indptr,
                kv_indices,
                x.custom_mask,
                True,  # is_causal, of which the mask leaves only the end of the loop
                x.mask_indptr,
                int(x.qo_indptr.diff().max()),
                1.0,  # k_scale
                1.0,  # v_scale
                sm_scale=x.shape.score_scale,
                sliding_window_size=-1 if window is None else window - 1,
                window_kv_offsets=skipped,
                lse_extend=lse,
            )
        return Attended(out=out, lse=lse)
