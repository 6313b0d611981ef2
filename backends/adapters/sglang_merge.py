"""Backend `sglang-merge`: SGLang's Triton `merge_state_triton`, which joins two partial attentions.

Its cascade merges the prefix part and the tree part of a row with it wherever `sgl_kernel` does not.
Of two parts without a key it makes NaN, though a part without keys is itself 0 and -inf: left as it
is. No row of a verify step comes to that, because every row reads itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.beside_attention import beside_attention
from treeproof.contract.registry import register

MODULE = "sglang.kernels.ops.attention.merge_state"


@register(
    "sglang-merge",
    capabilities=beside_attention(),
    requires=sglang_loader.REQUIRES,
)
class SglangMerge:
    """Log-sum-exps in natural log, float32."""

    def __init__(self) -> None:
        self._merge: Any = sglang_loader.load(MODULE).merge_state_triton

    def merge(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(R, Hq, Dv) and (R, Hq) of both; in the dtype of the parts."""
        with np.errstate(divide="ignore", invalid="ignore"):
            merged: tuple[Tensor, Tensor] = self._merge(out_a, lse_a, out_b, lse_b)
        return merged
