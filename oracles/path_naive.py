"""The definition: every root-to-node path alone, one after another. `path` must equal this."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_result import PathResult, check_inputs
from treeproof.oracles.rotary import rotated


def attend_paths_naive(
    tree: CandidateTree,
    prefix_len: int,
    shape: AttentionShape,
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    k_tree: Tensor,
    v_tree: Tensor,
) -> PathResult:
    """Attention at the last position of `prefix + path(v)`, for each node v. Arguments as `path`'s."""
    check_inputs(tree, prefix_len, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    k_prefix = rotated(k_prefix, torch.arange(prefix_len, device=q.device), shape.rotary)
    v_prefix = v_prefix.double()
    rows = []
    for node in range(len(tree)):
        path = list(tree.path(node))
        length = prefix_len + len(path)
        index = torch.arange(prefix_len, length, device=q.device)  # logical index of the path
        keys = torch.cat((k_prefix, rotated(k_tree[path], index, shape.rotary)))
        values = torch.cat((v_prefix, v_tree[path].double()))
        query = rotated(q[node : node + 1], index[-1:], shape.rotary)[0]
        if shape.window is not None:
            keys, values = keys[-shape.window :], values[-shape.window :]
        rows.append(_last_position(query, keys, values, shape))
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    return PathResult(*columns)


def _last_position(
    query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape
) -> tuple[Tensor, ...]:
    """query (Hq, D), keys (n, Hkv, D), values (n, Hkv, Dv): the fields of PathResult for one node."""
    grouped = query.view(shape.num_kv_heads, shape.group_size, shape.head_dim)
    scores = torch.einsum("hgd,nhd->hgn", grouped, keys) * shape.score_scale
    sizes = torch.einsum("hgd,nhd->hgn", grouped.abs(), keys.abs()) * shape.score_scale
    p = scores.softmax(dim=-1)
    heads, wide = shape.num_q_heads, (shape.num_q_heads, shape.v_head_dim)
    return (
        torch.einsum("hgn,nhd->hgd", p, values).reshape(wide),
        scores.logsumexp(dim=-1).reshape(heads),
        torch.einsum("hgn,nhd->hgd", p, values.abs()).reshape(wide),
        values.abs().sum(dim=0).repeat_interleave(shape.group_size, dim=0),
        sizes.amax(dim=-1).reshape(heads),
        scores.amax(dim=-1).reshape(heads),
        torch.tensor(keys.shape[0], device=query.device),
    )
