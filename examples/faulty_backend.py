"""A backend with a classic fault: a causal mask among the verify rows instead of the tree's.

    treeproof check examples/faulty_backend.py --seed 1

Mended by reading `x.custom_mask` instead, as examples/third_party_backend.py does.
"""

import torch

import treeproof


@treeproof.register(
    "causal",
    consumes={"qo_indptr", "seq_lens", "out_cache_loc", "request_slots", "req_to_token"},
    capabilities=treeproof.Capabilities(windows=False, pad_rows=False),
    numerics=treeproof.Numerics(p="float32"),
)
def attend(x, q, k, v, k_cache, v_cache):
    """Row i reads the prefix and rows 0 to i: right for a chain, wrong for a tree."""
    treeproof.store_kv(x, k, v, k_cache, v_cache)
    group = q.shape[1] // k.shape[1]
    out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    rows = x.qo_indptr.tolist()
    for b, prefix in enumerate(x.seq_lens.tolist()):
        lo, hi = rows[b], rows[b + 1]
        slots = torch.cat([x.req_to_token[x.request_slots[b], :prefix], x.out_cache_loc[lo:hi]])
        visible = torch.ones(hi - lo, len(slots), dtype=torch.bool, device=q.device).tril(prefix)
        keys = k_cache[slots].float().repeat_interleave(group, 1)
        values = v_cache[slots].float().repeat_interleave(group, 1)
        scores = torch.einsum("thd,lhd->htl", q[lo:hi].float(), keys) * x.shape.score_scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[lo:hi] = torch.einsum("htl,lhd->thd", weights, values).to(q.dtype)
    return treeproof.Attended(out=out)
