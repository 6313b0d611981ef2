"""`torch.nn.attention.varlen` of torch 2.11 over plain torch: no pages, and as many heads everywhere."""

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
):
    flash_dense.expect(cu_seq_q=cu_seq_q, cu_seq_k=cu_seq_k)
    assert key.shape[1] == query.shape[1]
    out, lse = flash_dense.attend(
        query,
        flash_dense.flat(key, value, cu_seq_k),
        cu_seq_q,
        scale=scale or query.shape[-1] ** -0.5,
        window=window_size,
    )
    return (out, lse.t()) if return_aux is not None and return_aux.lse else out
