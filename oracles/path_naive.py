"""The definition: every root-to-node path alone, one after another. `path` must equal this."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_result import PLAIN_LAYER, PathResult, check_inputs, check_layer
from treeproof.oracles.rotary import rotated
from treeproof.oracles.stored import stored


def attend_paths_naive(
    tree: CandidateTree,
    prefix_len: int,
    shape: AttentionShape,
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    k_tree: Tensor,
    v_tree: Tensor,
    layer: LayerParameters = PLAIN_LAYER,
) -> PathResult:
    """Attention at the last position of `prefix + path(v)`, for each node v. Arguments as `path`'s."""
    check_inputs(tree, prefix_len, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    check_layer(shape, layer)
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
        keys = stored(keys, layer.k_scale, shape.kv_dtype)
        values = stored(values, layer.v_scale, shape.kv_dtype)
        rows.append(_last_position(query, keys, values, shape, layer))
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    return PathResult(*columns)


def _last_position(
    query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape, layer: LayerParameters
) -> tuple[Tensor, ...]:
    """query (Hq, D), keys (n, Hkv, D), values (n, Hkv, Dv): the fields of PathResult for one node."""
    heads, length = shape.num_q_heads, len(keys)
    # Every query head beside the keys and values of its own group.
    keys = keys.repeat_interleave(shape.group_size, dim=1)
    values = values.repeat_interleave(shape.group_size, dim=1)
    logits = torch.einsum("hd,nhd->hn", query, keys) * shape.score_scale
    sizes = torch.einsum("hd,nhd->hn", query.abs(), keys.abs()) * shape.score_scale
    if shape.softcap is not None:
        logits = shape.softcap * torch.tanh(logits / shape.softcap)
    added = torch.zeros(heads, 1, dtype=torch.float64, device=query.device)
    if shape.alibi and layer.alibi_slopes is not None:
        distance = torch.arange(
            length - 1, -1, -1, device=query.device
        )  # the last key is the query's
        added = layer.alibi_slopes.double()[:, None] * distance
        logits = logits - added
    everything = logits
    if shape.sinks and layer.sinks is not None:
        sink = layer.sinks.double()[:, None]
        everything = torch.cat((logits, sink), dim=1)
        added = torch.cat((added, sink.abs()), dim=1)
    p = everything.softmax(dim=1)[:, :length]  # a sink's weight goes to no value
    return (
        torch.einsum("hn,nhd->hd", p, values),
        logits.logsumexp(dim=1),
        everything.logsumexp(dim=1),
        torch.einsum("hn,nhd->hd", p, values.abs()),
        values.abs().sum(dim=0),
        sizes.amax(dim=1),
        everything.amax(dim=1),
        added.amax(dim=1),
        torch.tensor(length, device=query.device),
    )
