"""A backend of your own in twenty lines: dense attention over the FULL_MASK that a builder made.

treeproof check examples/third_party_backend.py
"""

import torch

import treeproof


@treeproof.register(
    "dense",
    consumes={"custom_mask", "mask_indptr", "qo_indptr", "seq_lens", "out_cache_loc", "request_slots", "req_to_token"},
    capabilities=treeproof.Capabilities(mask_modes={"FULL_MASK"}, windows=False, pad_rows=False),
    numerics=treeproof.Numerics(p="float32"),
)  # fmt: skip
def attend(x, q, k, v, k_cache, v_cache):
    """q (T, Hq, D); k (T, Hkv, D) and v (T, Hkv, Dv) of the verify rows; caches (num_slots, Hkv, …)."""
    treeproof.store_kv(x, k, v, k_cache, v_cache)
    group = q.shape[1] // k.shape[1]
    out, rows = (
        torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device),
        x.qo_indptr.tolist(),
    )
    for b, prefix in enumerate(x.seq_lens.tolist()):
        lo, hi = rows[b], rows[b + 1]
        slots = torch.cat([x.req_to_token[x.request_slots[b], :prefix], x.out_cache_loc[lo:hi]])
        mask = x.custom_mask[x.mask_indptr[b] :][: (hi - lo) * len(slots)].view(hi - lo, len(slots))
        visible = mask.clone()
        visible[:, :prefix] = True  # prefix cells may be left undefined
        keys = k_cache[slots].float().repeat_interleave(group, 1)
        values = v_cache[slots].float().repeat_interleave(group, 1)
        scores = torch.einsum("thd,lhd->htl", q[lo:hi].float(), keys) * x.shape.score_scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[lo:hi] = torch.einsum("htl,lhd->thd", weights, values).to(q.dtype)
    return treeproof.Attended(out=out)
