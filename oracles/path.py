"""The truth: node v of a tree is the last position of an ordinary sequence, prefix + path(v).

What a node sees is a list of keys, and lists are all there is here: the part of the prefix that
every node sees is a slice, read once for all of them; the rest of a node's list (its path, and the
few prefix keys a window leaves to some nodes only) is gathered. Lists of equal length are stacked;
none is lengthened to fit another. `path_naive` is the same thing one path at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_result import PathResult, check_inputs
from treeproof.oracles.rotary import rotated

__all__ = ["PathResult", "attend_paths"]

CHUNK = 1 << 20
"""Numbers in the largest tensor made at a time (8 MiB in float64), whatever the prefix length."""


def attend_paths(
    tree: CandidateTree,
    prefix_len: int,
    shape: AttentionShape,
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    k_tree: Tensor,
    v_tree: Tensor,
) -> PathResult:
    """Attention of every node on its own path, in float64.

    q (N, Hq, D), k_tree (N, Hkv, D) and v_tree (N, Hkv, Dv) in node order, k_prefix (P, Hkv, D) and
    v_prefix (P, Hkv, Dv) in logical order: unrotated, in the working dtype `shape.dtype`. Rotary
    embedding is applied here, at logical index P + depth. With a window of W keys, index t sees
    index p iff t - W < p <= t. Raises ValueError where a tensor does not fit the tree or the shape.
    """
    check_inputs(
        tree,
        prefix_len,
        shape,
        {"q": q, "k_prefix": k_prefix, "v_prefix": v_prefix, "k_tree": k_tree, "v_tree": v_tree},
    )
    lists = _visible_lists(tree, prefix_len, shape.window)
    at = torch.tensor([prefix_len + depth for depth in tree.depth], device=q.device)
    edge = slice(lists.oldest, lists.shared)
    query = _by_head(rotated(q, at, shape.rotary)).unflatten(
        0, (shape.num_kv_heads, shape.group_size)
    )
    query = query.transpose(1, 2).contiguous()  # (Hkv, N, G, D)
    keys = torch.cat((_prefix_keys(k_prefix, edge, shape), rotated(k_tree, at, shape.rotary)))
    values = torch.cat((v_prefix[edge], v_tree)).double()
    partial = _own(query, _by_head(keys), _by_head(values), lists.own, shape)
    step = max(1, CHUNK // (shape.num_q_heads * max(len(tree), shape.head_dim, shape.v_head_dim)))
    for low in range(lists.shared, prefix_len, step):
        part = slice(low, min(low + step, prefix_len))
        keys, values = _prefix_keys(k_prefix, part, shape), v_prefix[part].double()
        partial = _joined(partial, _shared(query, _by_head(keys), _by_head(values), shape))
    visible = [len(own) + prefix_len - lists.shared for own in lists.own]
    return _result(partial, torch.tensor(visible, device=q.device), shape)


@dataclass(frozen=True)
class _Lists:
    """Keys each node sees: `own[v]`, and the prefix from logical index `shared` on.

    `own` counts from prefix index `oldest` to `shared`, the tree's nodes following.
    """

    oldest: int
    shared: int
    own: list[list[int]]


def _visible_lists(tree: CandidateTree, prefix_len: int, window: int | None) -> _Lists:
    """Cut every sequence prefix + path(v) at its window."""
    first = [  # logical index of the oldest key each node sees
        0 if window is None else max(0, prefix_len + depth - window + 1) for depth in tree.depth
    ]
    shared = min(prefix_len, max(first))
    oldest = min(shared, min(first))
    nodes = shared - oldest
    own = []
    for node, start in enumerate(first):
        path = tree.path(node)[max(0, start - prefix_len) :]
        own.append([*range(start - oldest, nodes), *(nodes + u for u in path)])
    return _Lists(oldest, shared, own)


def _by_head(x: Tensor) -> Tensor:
    """(n, heads, d) to (heads, n, d)."""
    return x.transpose(0, 1).contiguous()


def _prefix_keys(k_prefix: Tensor, part: slice, shape: AttentionShape) -> Tensor:
    at = torch.arange(part.start, part.stop, device=k_prefix.device)
    return rotated(k_prefix[part], at, shape.rotary)


@dataclass(frozen=True)
class _Partial:
    """Softmax over a part of the keys, all nodes: exponentials are taken relative to `peak`."""

    peak: Tensor  # (Hkv, N, G): largest score
    mass: Tensor  # (Hkv, N, G): sum of exp(score - peak)
    out: Tensor  # (Hkv, N, G, Dv): the same times v
    weight: Tensor  # (Hkv, N, G, Dv): the same times |v|
    abs_v: Tensor  # (Hkv, N or 1, Dv): sum of |v|
    score_abs: Tensor  # (Hkv, N, G): largest scale * sum |q||k|


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> _Partial:
    """query (..., m, D), keys (..., n, D), values (..., n, Dv): every query sees every key."""
    scores = query @ keys.mT * scale
    peak = scores.amax(dim=-1)
    p = (scores - peak[..., None]).exp()
    sizes = values.abs()
    return _Partial(
        peak=peak,
        mass=p.sum(dim=-1),
        out=p @ values,
        weight=p @ sizes,
        abs_v=sizes.sum(dim=-2),
        score_abs=(query.abs() @ keys.abs().mT).amax(dim=-1) * scale,
    )


def _own(
    query: Tensor, keys: Tensor, values: Tensor, own: list[list[int]], shape: AttentionShape
) -> _Partial:
    """Each node on its own list. query (Hkv, N, G, D), keys (Hkv, n, D), values (Hkv, n, Dv)."""
    buckets: dict[int, list[int]] = {}
    for node, listed in enumerate(own):
        buckets.setdefault(len(listed), []).append(node)
    parts, order = [], []
    for length, nodes in buckets.items():
        width = length * shape.num_q_heads * max(shape.head_dim, shape.v_head_dim)
        step = max(1, CHUNK // width)
        for low in range(0, len(nodes), step):
            some = nodes[low : low + step]
            index = torch.tensor([own[node] for node in some], device=query.device)
            order += some
            parts.append(
                _attend(query[:, some], keys[:, index], values[:, index], shape.score_scale)
            )
    back = torch.tensor(order, device=query.device).argsort()

    def in_node_order(field: str) -> Tensor:
        return torch.cat([getattr(part, field) for part in parts], dim=1)[:, back]

    return _Partial(**{field: in_node_order(field) for field in _Partial.__dataclass_fields__})


def _shared(query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> _Partial:
    """All nodes on one slice of the prefix. Shapes as in `_own`."""
    nodes, group = query.shape[1:3]
    flat = _attend(query.flatten(1, 2), keys, values, shape.score_scale)
    return _Partial(
        peak=flat.peak.unflatten(1, (nodes, group)),
        mass=flat.mass.unflatten(1, (nodes, group)),
        out=flat.out.unflatten(1, (nodes, group)),
        weight=flat.weight.unflatten(1, (nodes, group)),
        abs_v=flat.abs_v[:, None],
        score_abs=flat.score_abs.unflatten(1, (nodes, group)),
    )


def _joined(a: _Partial, b: _Partial) -> _Partial:
    """Softmax over the keys of both parts."""
    peak = torch.maximum(a.peak, b.peak)
    of_a, of_b = (a.peak - peak).exp(), (b.peak - peak).exp()
    return _Partial(
        peak=peak,
        mass=a.mass * of_a + b.mass * of_b,
        out=a.out * of_a[..., None] + b.out * of_b[..., None],
        weight=a.weight * of_a[..., None] + b.weight * of_b[..., None],
        abs_v=a.abs_v + b.abs_v,
        score_abs=torch.maximum(a.score_abs, b.score_abs),
    )


def _result(partial: _Partial, visible: Tensor, shape: AttentionShape) -> PathResult:
    """Normalise, and put heads where callers have them: (Hkv, N, G, ...) to (N, Hq, ...)."""

    def by_node(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)

    return PathResult(
        out=by_node(partial.out / partial.mass[..., None]),
        lse=by_node(partial.peak + partial.mass.log()),
        weight=by_node(partial.weight / partial.mass[..., None]),
        abs_v=by_node(partial.abs_v[:, :, None].expand(-1, -1, shape.group_size, -1)),
        score_abs=by_node(partial.score_abs),
        score_max=by_node(partial.peak),
        visible=visible,
    )
