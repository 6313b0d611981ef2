"""Backend `sdpa-direct-mask`: torch's scaled_dot_product_attention under a boolean tree mask.

One call a batch: the rows of each request over its prefix and over all its rows, what each sees told by a
mask of ones and zeros, read in whichever of the three layouts it has. A window is cut by logical index,
that of a verify row being its position. There is no log-sum-exp. How wide a batch is, shapes say, so that
a launch can be captured.

On the CPU and on CUDA, by whichever of torch's kernels takes the shapes: scores in float32, weights
rounded to the dtype of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from treeproof.backends.adapters import tree_mask
from treeproof.backends.adapters.tree_mask import most_rows, owner, tree_cells
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
        capturable=True,
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
    prefix, first = x.kv_indptr.diff()[:, None], x.qo_indptr[:-1, None]
    request, local_row = owner(x.qo_indptr, len(q))
    # A batch has Nmax rows a request, the last ones of a shorter request being its last row again.
    rows = (first + torch.arange(most_rows(x), device=q.device)).minimum(x.qo_indptr[1:, None] - 1)
    reach = x.req_to_token.shape[1] if x.shape.window is None else x.shape.window - 1
    # Slots before the root's window may have been given back: no row reaches them.
    index = (prefix - reach).clamp(min=0) + torch.arange(reach, device=q.device)
    held = index < prefix
    # What is not held is the root, hidden.
    entry = torch.where(held, x.kv_indptr[:-1, None] + index, 0)
    slots = torch.where(held, _padded(x.kv_indices)[entry], x.out_cache_loc[first])
    seen = torch.cat([held[request], tree_cells(x)], dim=1)
    if x.shape.window is not None:
        logical = torch.cat([index, x.positions[rows]], dim=1)[request]
        seen = seen & (logical > x.positions[:, None] - x.shape.window)
    at = at_slots(slots, x.kv)
    attended = scaled_dot_product_attention(
        q[rows].transpose(1, 2),
        torch.cat([k_cache[at], k[rows]], dim=1).transpose(1, 2),
        torch.cat([v_cache[at], v[rows]], dim=1).transpose(1, 2),
        attn_mask=seen[rows][:, None],
        scale=x.shape.score_scale,
        enable_gqa=True,
    )
    return Attended(out=attended.transpose(1, 2)[request, local_row])


def _padded(slots: Tensor) -> Tensor:
    """There are none where all prefixes are empty."""
    return torch.nn.functional.pad(slots, (0, 1))
