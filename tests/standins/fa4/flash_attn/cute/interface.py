"""The interface of flash-attn-4 4.0.0b36 over plain torch."""

import flash_dense
import torch


def flash_attn_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    return_lse=False,
):
    assert page_table is not None, "this build takes pages of one key"
    assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
    flash_dense.expect(cu_seqlens_q=cu_seqlens_q, page_table=page_table, seqused_k=seqused_k)
    assert page_table.shape[0] == len(seqused_k) == len(cu_seqlens_q) - 1
    assert q.dtype == k.dtype == v.dtype != torch.float32
    assert max_seqlen_q == flash_dense.longest(cu_seqlens_q)
    assert max_seqlen_k == int(seqused_k.max())
    assert not causal
    out, lse = flash_dense.attend(
        q,
        flash_dense.paged(k, v, page_table, seqused_k),
        cu_seqlens_q,
        scale=softmax_scale or q.shape[-1] ** -0.5,
        window=tuple(-1 if side is None else side for side in window_size),
        softcap=softcap,
        sinks=learnable_sink,
    )
    return out, lse if return_lse else None
