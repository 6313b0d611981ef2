"""The interface of fa3_fwd 0.0.3 over plain torch: no pages, no windows, no float16."""

import flash_dense
import torch


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    flash_dense.expect(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    assert q.dtype is torch.bfloat16, "this build has no other dtype"
    assert window_size == (-1, -1), "this build has no local attention"
    assert not causal
    assert max_seqlen_q >= flash_dense.longest(cu_seqlens_q)
    assert max_seqlen_k == flash_dense.longest(cu_seqlens_k)
    out, lse = flash_dense.attend(
        q,
        flash_dense.flat(k, v, cu_seqlens_k, seqused_k),
        cu_seqlens_q,
        scale=softmax_scale or q.shape[-1] ** -0.5,
        softcap=softcap,
        empty=float("inf"),
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache(q, k_cache, v_cache, page_table=None, cache_seqlens=None):
    raise AssertionError("this build has no paged KV")
