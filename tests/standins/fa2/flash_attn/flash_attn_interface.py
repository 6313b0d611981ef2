"""The interface of flash-attn 2.8 over plain torch: pages of 256 slots and multiples."""

import flash_dense


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    flash_dense.expect(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    assert max_seqlen_q == flash_dense.longest(cu_seqlens_q)
    assert max_seqlen_k == flash_dense.longest(cu_seqlens_k)
    assert not causal
    assert k.shape[-1] == v.shape[-1] == q.shape[-1]
    if block_table is None:
        lists = flash_dense.flat(k, v, cu_seqlens_k)
    else:
        flash_dense.expect(block_table=block_table)
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        lists = flash_dense.paged(k, v, block_table, cu_seqlens_k.diff())
    out, lse = flash_dense.attend(
        q,
        lists,
        cu_seqlens_q,
        scale=softmax_scale or q.shape[-1] ** -0.5,
        window=window_size,
        softcap=softcap,
        empty=float("inf"),
    )
    return (out, lse, None) if return_attn_probs else out
