"""Backend `sdpa-direct-mask`: torch's scaled_dot_product_attention under a boolean tree mask.

One call a request: its rows over its prefix and over all rows, what each sees told by a mask of ones
and zeros, read in whichever of the three layouts it has. A window is cut by logical index, that of a
verify row being its position. There is no log-sum-exp.

On the CPU and on CUDA, by whichever of torch's kernels takes the shapes: scores in float32, weights
rounded to the dtype of the inputs.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from treeproof.backends.adapters import tree_mask
from treeproof.backends.adapters.tree_mask import tree_cells
from treeproof.backends.reference.store import at_slots, store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register


@register(
    "sdpa-direct-mask",
    consumes=tree_mask.READS | {"positions", "out_cache_loc", "kv_indices"},
    # A hidden value is multiplied by a weight of 0, and 0 * NaN is NaN.
    capabilities=Capabilities(
        nan_safe=False,
        tree_kv="operand",
        cache_layouts={"NHD", "HND", "layered", "interleaved"},
    ),
    numerics=Numerics(p="input"),
    kernels={"aten::scaled_dot_product_attention"},
)
def attend(
    x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Attended:
    """Prefix keys from the cache, the verify rows' own from `k` and `v`."""
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    store_kv(x, k, v, k_cache, v_cache)
    seen, out = tree_cells(x), q.new_empty(*q.shape[:2], v.shape[2])
    requests = zip(pairwise(x.qo_indptr.tolist()), pairwise(x.kv_indptr.tolist()), strict=True)
    for (first, end), (begin, stop) in requests:
        own, slots = slice(first, end), x.kv_indices[begin:stop]
        index = torch.arange(stop - begin, device=q.device)
        if x.shape.window is not None:
            # Slots before the root's window may have been given back: no row reaches them.
            held = index > stop - begin - x.shape.window
            index, slots = index[held], slots[held]
        mask = torch.cat([seen.new_ones(end - first, len(index)), seen[own, : end - first]], dim=1)
        if x.shape.window is not None:
            logical = torch.cat([index, x.positions[own]])
            mask = mask & (logical > x.positions[own, None] - x.shape.window)
        at = at_slots(slots, x.kv)
        attended = scaled_dot_product_attention(
            _batched(q[own]),
            _batched(torch.cat([k_cache[at], k[own]])),
            _batched(torch.cat([v_cache[at], v[own]])),
            attn_mask=mask,
            scale=x.shape.score_scale,
            enable_gqa=True,
        )
        out[own] = attended[0].transpose(0, 1)
    return Attended(out=out)


def _batched(t: Tensor) -> Tensor:
    """(rows, heads, D) to (1, heads, rows, D)."""
    return t.transpose(0, 1)[None]
