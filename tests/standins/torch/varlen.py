"""`torch.nn.attention.varlen` of torch 2.12 and 2.13 over plain torch: pages of 256 slots and multiples."""

from typing import NamedTuple

import flash_dense


class AuxRequest(NamedTuple):
    lse: bool = False


def varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    assert enable_gqa or key.shape[-2] == query.shape[1]
    flash_dense.expect(cu_seq_q=cu_seq_q)
    assert max_q == flash_dense.longest(cu_seq_q)
    if block_table is None:
        flash_dense.expect(cu_seq_k=cu_seq_k)
        assert max_k == flash_dense.longest(cu_seq_k)
        lists = flash_dense.flat(key, value, cu_seq_k)
    else:
        assert cu_seq_k is None
        flash_dense.expect(block_table=block_table, seqused_k=seqused_k)
        assert key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        assert max_k == int(seqused_k.max())
        lists = flash_dense.paged(key, value, block_table, seqused_k)
    out, lse = flash_dense.attend(
        query,
        lists,
        cu_seq_q,
        scale=scale or query.shape[-1] ** -0.5,
        window=window_size,
        empty=float("inf"),
    )
    return (out, lse) if return_aux is not None and return_aux.lse else out
