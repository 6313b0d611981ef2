"""The truth: node v of a tree is the last position of an ordinary sequence, prefix + path(v).

What a node sees is a list of keys, and lists are all there is here: the part of the prefix that
every node sees is a slice, read once for all of them; the rest of a node's list (its path, and the
few prefix keys a window leaves to some nodes only) is gathered. Lists of equal length are stacked;
none is lengthened to fit another. `path_naive` is the same thing one path at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_result import PLAIN_LAYER, PathResult, check_inputs, check_layer
from treeproof.oracles.rotary import rotated
from treeproof.oracles.stored import stored

__all__ = ["PathResult", "attend_batch", "attend_paths"]

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""About the most numbers in one tensor (8 MiB and 512 MiB in float64), whatever the prefix length."""


def attend_paths(
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
    """`attend_batch` for one request."""
    return attend_batch(
        [tree], [prefix_len], shape, [q], [k_prefix], [v_prefix], [k_tree], [v_tree], layer
    )


def attend_batch(
    trees: Sequence[CandidateTree],
    prefix_lens: Sequence[int],
    shape: AttentionShape,
    q: Sequence[Tensor],
    k_prefix: Sequence[Tensor],
    v_prefix: Sequence[Tensor],
    k_tree: Sequence[Tensor],
    v_tree: Sequence[Tensor],
    layer: LayerParameters = PLAIN_LAYER,
) -> PathResult:
    """Attention of every node of every request on its own path, in float64; one entry a request.

    q (N, Hq, D), k_tree (N, Hkv, D) and v_tree (N, Hkv, Dv) in node order, k_prefix (P, Hkv, D) and
    v_prefix (P, Hkv, Dv) in logical order: unrotated, in the working dtype `shape.dtype`, all on
    one device. Rotary embedding is applied here, at logical index P + depth. With a window of W
    keys, index t sees index p iff t - W < p <= t. `layer` holds the parameters that the shape asks
    for; keys (rotated) and values are rounded as a quantised cache rounds them. The result holds the
    nodes of all requests, one request after the other. Raises ValueError where a tensor does not fit
    its tree or the shape.
    """
    for tree, length, *tensors in zip(
        trees, prefix_lens, q, k_prefix, v_prefix, k_tree, v_tree, strict=True
    ):
        check_inputs(tree, length, shape, *tensors)
    check_layer(shape, layer)
    scores = _Scores.of(shape, layer)
    seen = [
        _Seen.of(tree, length, shape.window)
        for tree, length in zip(trees, prefix_lens, strict=True)
    ]
    device = q[0].device
    at = torch.tensor(
        [p + depth for tree, p in zip(trees, prefix_lens, strict=True) for depth in tree.depth],
        device=device,
    )
    query = _Query(_grouped(rotated(torch.cat(tuple(q)), at, shape.rotary), shape), at)

    def held(keys: Tensor, values: Tensor, index: Tensor) -> _Held:
        keys = stored(rotated(keys, index, shape.rotary), layer.k_scale, shape.kv_dtype)
        values = stored(values.double(), layer.v_scale, shape.kv_dtype)
        return _Held(_keys(keys), _values(values), index)

    bounds = [0, *accumulate(map(len, trees))]
    nodes = [slice(*pair) for pair in pairwise(bounds)]
    lists, keys, values, index = _pool(seen, nodes, k_prefix, v_prefix, k_tree, v_tree, at)
    partial = _own(query, held(keys, values, index), lists, scores)
    widest = max(shape.head_dim, shape.v_head_dim)
    parts: list[_Partial | None] = []
    for b, (own, length) in enumerate(zip(seen, prefix_lens, strict=True)):
        alone = _Query(query.heads[:, :, nodes[b]], at[nodes[b]])
        step = max(1, CHUNK[device.type] // (shape.num_q_heads * max(len(trees[b]), widest)))
        shared: _Partial | None = None
        for low in range(own.shared, length, step):
            here = torch.arange(low, min(low + step, length), device=device)
            cut = slice(low, low + step)
            part = _shared(alone, held(k_prefix[b][cut], v_prefix[b][cut], here), scores)
            shared = part if shared is None else _joined(shared, part)
        parts.append(shared)
    visible = [
        len(own) + length - one.shared
        for one, length in zip(seen, prefix_lens, strict=True)
        for own in one.lists
    ]
    return _result(
        _with_prefixes(partial, parts, nodes), torch.tensor(visible, device=device), shape, layer
    )


def _pool(
    seen: Sequence[_Seen],
    nodes: Sequence[slice],
    k_prefix: Sequence[Tensor],
    v_prefix: Sequence[Tensor],
    k_tree: Sequence[Tensor],
    v_tree: Sequence[Tensor],
    at: Tensor,
) -> tuple[list[list[int]], Tensor, Tensor, Tensor]:
    """Every node's list in one pool of keys, and the pool: keys, values and logical indices.

    Of each request, the prefix keys that not all of its nodes see, and then its nodes.
    """
    lists: list[list[int]] = []
    keys, values, index = [], [], []
    begin = 0
    for b, own in enumerate(seen):
        some = slice(own.oldest, own.shared)
        keys += [k_prefix[b][some], k_tree[b]]
        values += [v_prefix[b][some], v_tree[b]]
        index += [torch.arange(own.oldest, own.shared, device=at.device), at[nodes[b]]]
        lists += [[begin + key for key in each] for each in own.lists]
        begin += own.shared - own.oldest + len(own.lists)
    return lists, torch.cat(keys), torch.cat(values), torch.cat(index)


@dataclass(frozen=True)
class _Seen:
    """Which keys each node sees: those of `lists`, and the prefix from logical index `shared` on.

    A list counts from prefix index `oldest` up to `shared`, and from there through the nodes of the
    tree.
    """

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
        return cls(lists, oldest, shared)


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
class _Query:
    """Queries (2, Hkv, N, G, D), and the logical index (N,) that each stands at."""

    heads: Tensor
    at: Tensor


@dataclass(frozen=True)
class _Held:
    """Keys (2, Hkv, n, D), values (Hkv, n, 2 * Dv), and the logical index (n,) of each."""

    keys: Tensor
    values: Tensor
    index: Tensor


@dataclass(frozen=True)
class _Scores:
    """How a logit comes from q.k and a distance; `slopes` (Hkv, G) or None."""

    scale: float
    softcap: float | None
    slopes: Tensor | None

    @classmethod
    def of(cls, shape: AttentionShape, layer: LayerParameters) -> _Scores:
        slopes = layer.alibi_slopes if shape.alibi else None
        if slopes is not None:
            slopes = slopes.double().view(shape.num_kv_heads, shape.group_size)
        return cls(shape.score_scale, shape.softcap, slopes)

    def logits(self, products: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Of products (Hkv, ..., G, n), which are used up, and distances (..., 1, n): logits and what
        was taken off."""
        scores = products.mul_(self.scale)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is None:
            return scores, torch.zeros_like(scores[..., :1])
        heads, group = self.slopes.shape
        bias = self.slopes.view(heads, *[1] * (scores.dim() - 3), group, 1) * distance
        return scores - bias, bias


@dataclass(frozen=True)
class _Partial:
    """Softmax over a part of the keys; exponentials are taken relative to the largest logit."""

    largest: Tensor  # (3, Hkv, N, G): logit, scale * sum |q||k|, and bias
    mass: Tensor  # (Hkv, N, G): sum of exp(logit - largest logit)
    sums: Tensor  # (Hkv, N, G, 2 * Dv): the same times v, times |v|
    plain: Tensor  # (Hkv, N or 1, 2 * Dv): sum of v, of |v|; 1 where all nodes read the same keys


def _attend(products: Tensor, distance: Tensor, values: Tensor, scores: _Scores) -> _Partial:
    """products (2, Hkv, N, G, n), distance (N, 1, n), values (Hkv, N, n, 2 * Dv) or of all nodes."""
    logits, bias = scores.logits(products[0], distance)
    sizes = products[1].amax(dim=-1) * scores.scale  # the scale is positive
    largest = torch.stack((logits.amax(dim=-1), sizes, bias.amax(dim=-1).expand_as(logits[..., 0])))
    p = logits.sub_(largest[0][..., None]).exp_()
    if values.dim() == 3:  # read by all nodes: one product a key-value head
        sums = (p.flatten(1, 2) @ values).view(*p.shape[:3], -1)
        return _Partial(largest, p.sum(dim=-1), sums, values.sum(dim=-2)[:, None])
    return _Partial(largest, p.sum(dim=-1), p @ values, values.sum(dim=-2))


def _own(query: _Query, held: _Held, lists: list[list[int]], scores: _Scores) -> _Partial:
    """Each node on its own list: one stack for lists of equal length, in pieces of about CHUNK."""
    order = sorted(range(len(lists)), key=lambda node: len(lists[node]))
    nodes = torch.tensor(order, device=query.at.device)
    heads, at = query.heads[:, :, nodes], query.at[nodes]
    parts = []
    low = 0
    _, kv_heads, _, group, lanes = heads.shape
    width = kv_heads * group * max(lanes, held.values.shape[-1] // 2)
    for length, equal in groupby((lists[node] for node in order), key=len):
        stack = list(equal)
        most = max(1, CHUNK[at.device.type] // (length * width))
        for begin in range(0, len(stack), most):
            index = torch.tensor(stack[begin : begin + most], device=at.device)
            high = low + len(index)
            products = heads[:, :, low:high] @ held.keys[:, :, index].mT
            distance = at[low:high, None] - held.index[index]
            parts.append(_attend(products, distance[:, None], held.values[:, index], scores))
            low = high
    return _rows(_one_after_another(parts), nodes.argsort())


def _shared(query: _Query, held: _Held, scores: _Scores) -> _Partial:
    """All nodes on one slice of the prefix."""
    flat = query.heads.flatten(2, 3) @ held.keys.mT
    distance = query.at[:, None] - held.index
    products = flat.view(*query.heads.shape[:4], -1)
    return _attend(products, distance[:, None], held.values, scores)


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


def _one_after_another(parts: Sequence[_Partial]) -> _Partial:
    return _Partial(
        torch.cat([part.largest for part in parts], dim=2),
        torch.cat([part.mass for part in parts], dim=1),
        torch.cat([part.sums for part in parts], dim=1),
        torch.cat([part.plain.expand(-1, part.mass.shape[1], -1) for part in parts], dim=1),
    )


def _rows(partial: _Partial, index: Tensor) -> _Partial:
    """Nodes `index` (n,) of a partial."""
    return _Partial(
        partial.largest[:, :, index],
        partial.mass[:, index],
        partial.sums[:, index],
        partial.plain[:, index],
    )


def _with_prefixes(
    own: _Partial, parts: Sequence[_Partial | None], nodes: Sequence[slice]
) -> _Partial:
    """`own` of all nodes, joined with the part of each request that has one."""
    shared = [part for part in parts if part is not None]
    if not shared:
        return own
    every = torch.arange(own.mass.shape[1], device=own.mass.device)
    pairs = list(zip(parts, nodes, strict=True))
    some = torch.cat([every[place] for part, place in pairs if part is not None])
    joined = _joined(_rows(own, some), _one_after_another(shared))
    if len(some) == len(every):
        return joined
    others = torch.cat([every[place] for part, place in pairs if part is None])
    back = torch.cat((some, others)).argsort()
    return _rows(_one_after_another([joined, _rows(own, others)]), back)


def _result(
    partial: _Partial,
    visible: Tensor,
    shape: AttentionShape,
    layer: LayerParameters,
) -> PathResult:
    """Normalise, and go from (Hkv, N, G, ...) to (N, Hq, ...)."""

    def by_node(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)

    highest, score_abs, bias = partial.largest
    top, mass, sums = highest, partial.mass, partial.sums
    lse = highest + mass.log()
    if shape.sinks and layer.sinks is not None:
        sink = layer.sinks.double().view(shape.num_kv_heads, 1, shape.group_size).expand_as(highest)
        top = torch.maximum(highest, sink)
        smaller = (highest - top).exp()
        mass, sums = mass * smaller + (sink - top).exp(), sums * smaller[..., None]
        bias = torch.maximum(bias, sink.abs())
    out, weight = (sums / mass[..., None]).chunk(2, dim=-1)
    abs_v = partial.plain[..., shape.v_head_dim :]
    return PathResult(
        out=by_node(out),
        lse=by_node(lse),
        lse_sink=by_node(top + mass.log()),
        weight=by_node(weight),
        abs_v=by_node(abs_v[:, :, None].expand(-1, -1, shape.group_size, -1)),
        score_abs=by_node(score_abs),
        score_max=by_node(top),
        bias_abs=by_node(bias),
        visible=visible,
    )
