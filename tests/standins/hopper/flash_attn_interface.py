"""The interface of flash-attention/hopper over plain torch, built with everything."""

import flash_dense


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
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    raise AssertionError("this build takes pages of any size")


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    flash_dense.expect(
        cu_seqlens_q=cu_seqlens_q, page_table=page_table, cache_seqlens=cache_seqlens
    )
    assert k_cache.stride(-1) == 1
    assert v_cache.stride(-1) == 1
    assert not causal
    assert max_seqlen_q == flash_dense.longest(cu_seqlens_q)
    out, lse = flash_dense.attend(
        q,
        flash_dense.paged(k_cache, v_cache, page_table, cache_seqlens),
        cu_seqlens_q,
        scale=softmax_scale or q.shape[-1] ** -0.5,
        window=window_size,
        softcap=softcap,
    )
    return (out, lse, None, None) if return_softmax_lse else out
