"""The truth: node v of a tree is the last position of an ordinary sequence, prefix + path(v).

What a node sees is a list of keys, and lists are all there is here: the part of the prefix that
every node sees is a slice, read once for all of them; the rest of a node's list (its path, and the
few prefix keys a window leaves to some nodes only) is gathered. Lists of equal length are stacked;
none is lengthened to fit another. `path_naive` is the same thing one path at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_result import PathResult, check_inputs
from treeproof.oracles.rotary import rotated

__all__ = ["PathResult", "attend_paths"]

CHUNK = 1 << 20
"""About the most numbers in one tensor (8 MiB in float64), whatever the prefix length."""


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
    check_inputs(tree, prefix_len, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    seen = _Seen.of(tree, prefix_len, shape.window)
    at = torch.tensor([prefix_len + depth for depth in tree.depth], device=q.device)
    query = _grouped(rotated(q, at, shape.rotary)[seen.order], shape)

    def prefix(low: int, high: int) -> tuple[Tensor, Tensor]:
        index = torch.arange(low, high, device=q.device)
        keys = rotated(k_prefix[low:high], index, shape.rotary)
        return keys, v_prefix[low:high].double()

    keys, values = prefix(seen.oldest, seen.shared)
    keys = torch.cat((keys, rotated(k_tree, at, shape.rotary)))
    values = torch.cat((values, v_tree.double()))
    partial = _own(query, _keys(keys), _values(values), seen.lists, shape)
    step = max(1, CHUNK // (shape.num_q_heads * max(len(tree), shape.head_dim, shape.v_head_dim)))
    for low in range(seen.shared, prefix_len, step):
        keys, values = prefix(low, min(low + step, prefix_len))
        partial = _joined(partial, _shared(query, _keys(keys), _values(values), shape))
    visible = [len(own) + prefix_len - seen.shared for own in seen.lists]
    return _result(partial, torch.tensor(visible, device=q.device), seen.order, shape)


@dataclass(frozen=True)
class _Seen:
    """Which keys each node sees; nodes come in `order`, shortest list first.

    Node `order[i]` sees `lists[i]` and the prefix from logical index `shared` on. A list counts
    from prefix index `oldest` up to `shared`, and from there through the nodes of the tree.
    """

    order: list[int]
    lists: list[list[int]]
    oldest: int
    shared: int

    @classmethod
    def of(cls, tree: CandidateTree, prefix_len: int, window: int | None) -> _Seen:
        """Cut every sequence prefix + path(v) where its window begins."""
        first = [0] * len(tree)
        if window is not None:
            first = [max(0, prefix_len + depth - window + 1) for depth in tree.depth]
        shared = min(prefix_len, max(first))
        oldest = min(shared, min(first))
        nodes = shared - oldest
        lists = []
        for node, begin in enumerate(first):
            path = tree.path(node)[max(0, begin - prefix_len) :]
            lists.append([*range(begin - oldest, nodes), *(nodes + u for u in path)])
        order = sorted(range(len(tree)), key=lambda node: len(lists[node]))
        return cls(order, [lists[node] for node in order], oldest, shared)


# Each product is wanted of the numbers and of their magnitudes (the error bound needs both), so
# queries, keys and values travel as a pair: as they are, and absolute.


def _grouped(q: Tensor, shape: AttentionShape) -> Tensor:
    """q (N, Hq, D) to (2, Hkv, N, G, D), G query heads sharing each key-value head."""
    heads = q.view(len(q), shape.num_kv_heads, shape.group_size, shape.head_dim).transpose(0, 1)
    return torch.stack((heads, heads.abs()))


def _keys(k: Tensor) -> Tensor:
    """k (n, Hkv, D) to (2, Hkv, n, D)."""
    heads = k.transpose(0, 1)
    return torch.stack((heads, heads.abs()))


def _values(v: Tensor) -> Tensor:
    """v (n, Hkv, Dv) to (Hkv, n, 2 * Dv)."""
    heads = v.transpose(0, 1)
    return torch.cat((heads, heads.abs()), dim=-1)


@dataclass(frozen=True)
class _Partial:
    """Softmax over a part of the keys; exponentials are taken relative to the largest score."""

    largest: Tensor  # (2, Hkv, N, G): score, and scale * sum |q||k|
    mass: Tensor  # (Hkv, N, G): sum of exp(score - largest score)
    sums: Tensor  # (Hkv, N, G, 2 * Dv): the same times v, times |v|
    plain: Tensor  # (Hkv, N or 1, 2 * Dv): sum of v, of |v|


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> _Partial:
    """query (2, ..., m, D), keys (2, ..., n, D), values (..., n, 2 * Dv): all m see all n."""
    scores = query @ keys.mT * scale
    largest = scores.amax(dim=-1)
    p = (scores[0] - largest[0][..., None]).exp()
    return _Partial(largest, p.sum(dim=-1), p @ values, values.sum(dim=-2))


def _own(
    query: Tensor, keys: Tensor, values: Tensor, lists: list[list[int]], shape: AttentionShape
) -> _Partial:
    """Each node on its own list: one stack for lists of equal length, in pieces of about CHUNK."""
    parts = []
    low = 0
    for length, equal in groupby(lists, key=len):
        stack = list(equal)
        most = max(1, CHUNK // (length * shape.num_q_heads * max(shape.head_dim, shape.v_head_dim)))
        for begin in range(0, len(stack), most):
            index = torch.tensor(stack[begin : begin + most], device=query.device)
            high = low + len(index)
            some = query[:, :, low:high], keys[:, :, index], values[:, index]
            parts.append(_attend(*some, shape.score_scale))
            low = high
    return _Partial(
        torch.cat([part.largest for part in parts], dim=2),
        torch.cat([part.mass for part in parts], dim=1),
        torch.cat([part.sums for part in parts], dim=1),
        torch.cat([part.plain for part in parts], dim=1),
    )


def _shared(query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> _Partial:
    """All nodes on one slice of the prefix."""
    heads, nodes, group = query.shape[1:4]
    flat = _attend(query.flatten(2, 3), keys, values, shape.score_scale)
    return _Partial(
        flat.largest.view(2, heads, nodes, group),
        flat.mass.view(heads, nodes, group),
        flat.sums.view(heads, nodes, group, -1),
        flat.plain[:, None],
    )


def _joined(a: _Partial, b: _Partial) -> _Partial:
    """Softmax over the keys of both parts."""
    largest = torch.maximum(a.largest, b.largest)
    of_a, of_b = (a.largest[0] - largest[0]).exp(), (b.largest[0] - largest[0]).exp()
    return _Partial(
        largest,
        a.mass * of_a + b.mass * of_b,
        a.sums * of_a[..., None] + b.sums * of_b[..., None],
        a.plain + b.plain,
    )


def _result(
    partial: _Partial, visible: Tensor, order: list[int], shape: AttentionShape
) -> PathResult:
    """Normalise, go back to node order, and from (Hkv, N, G, ...) to (N, Hq, ...)."""
    back = torch.tensor(order, device=visible.device).argsort()

    def by_node(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)[back]

    score_max, score_abs = partial.largest
    out, weight = (partial.sums / partial.mass[..., None]).chunk(2, dim=-1)
    abs_v = partial.plain[..., shape.v_head_dim :]
    return PathResult(
        out=by_node(out),
        lse=by_node(score_max + partial.mass.log()),
        weight=by_node(weight),
        abs_v=by_node(abs_v[:, :, None].expand(-1, -1, shape.group_size, -1)),
        score_abs=by_node(score_abs),
        score_max=by_node(score_max),
        visible=visible[back],
    )
