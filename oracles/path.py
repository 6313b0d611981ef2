"""The truth: node v of a tree is the last position of an ordinary sequence, prefix + path(v).

What a node sees is a list of keys, and lists are all there is here: the part of the prefix that
every node sees is a slice, read once for all of them; the rest of a node's list (its path, and the
few prefix keys a window leaves to some nodes only) is gathered, one list after the other; none is
lengthened to fit another. `path_naive` is the same thing one path at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.partial import (
    Held,
    Partial,
    Query,
    Scores,
    grouped,
    joined,
    key_pairs,
    of_request,
    on_own_lists,
    on_shared,
    value_pairs,
    with_prefixes,
)
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
    scores = Scores.of(shape, layer)
    device, begin = q[0].device, 0
    chunk = CHUNK[device.type]
    seen: list[_Seen] = []
    for tree, length in zip(trees, prefix_lens, strict=True):
        seen.append(_Seen.of(tree, length, shape.window, begin))
        begin = seen[-1].end
    at = torch.tensor(
        [p + depth for tree, p in zip(trees, prefix_lens, strict=True) for depth in tree.depth],
        device=device,
    )
    query = Query(grouped(rotated(torch.cat(tuple(q)), at, shape.rotary), shape), at)

    def held(keys: Tensor, values: Tensor, index: Tensor) -> Held:
        # Plain numbers are widened once, where they are laid out.
        if shape.rotary is not None:
            keys = rotated(keys, index, shape.rotary)
        if shape.kv_dtype is not None:
            keys = stored(keys.double(), layer.k_scale, shape.kv_dtype)
            values = stored(values.double(), layer.v_scale, shape.kv_dtype)
        return Held(key_pairs(keys), value_pairs(values), index)

    bounds = [0, *accumulate(map(len, trees))]
    nodes = [slice(*pair) for pair in pairwise(bounds)]
    own = held(*_own_keys(seen, nodes, k_prefix, v_prefix, k_tree, v_tree, at))
    partial = on_own_lists(query, own, [keys for one in seen for keys in one.lists], scores, chunk)
    parts: list[Partial | None] = [None] * len(trees)
    for run in _runs(seen, trees, prefix_lens, shape, chunk):
        together = held(
            torch.cat([k_prefix[b][keys.start : keys.stop] for b, keys in run]),
            torch.cat([v_prefix[b][keys.start : keys.stop] for b, keys in run]),
            torch.cat([torch.arange(keys.start, keys.stop) for _, keys in run]).to(device),
        )
        begin = 0
        for alike in _alike(run, trees, shape.num_q_heads, chunk):
            requests = [b for b, _ in alike]
            counts, keys = [len(trees[b]) for b in requests], len(alike[0][1])
            here = together.of(slice(begin, begin + keys * len(alike)))
            begin += keys * len(alike)
            rows = _rows([bounds[b] for b in requests], counts, device)
            found = on_shared(
                Query(query.heads[:, :, rows], at[rows]), _by_request(here, keys), scores
            )
            for i, (b, count) in enumerate(zip(requests, counts, strict=True)):
                part, before = of_request(found, i, count), parts[b]
                parts[b] = part if before is None else joined(before, part)
    visible = [
        len(keys) + length - one.shared
        for one, length in zip(seen, prefix_lens, strict=True)
        for keys in one.lists
    ]
    return _result(
        with_prefixes(partial, parts, nodes), torch.tensor(visible, device=device), shape, layer
    )


def _own_keys(
    seen: Sequence[_Seen],
    nodes: Sequence[slice],
    k_prefix: Sequence[Tensor],
    v_prefix: Sequence[Tensor],
    k_tree: Sequence[Tensor],
    v_tree: Sequence[Tensor],
    at: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and logical indices that the lists of `seen` count through.

    Of each request, the prefix keys that not all of its nodes see, and then its nodes.
    """
    keys, values, index = [], [], []
    for b, one in enumerate(seen):
        if one.oldest < one.shared:
            some = slice(one.oldest, one.shared)
            keys.append(k_prefix[b][some])
            values.append(v_prefix[b][some])
            index.append(torch.arange(one.oldest, one.shared, device=at.device))
        keys.append(k_tree[b])
        values.append(v_tree[b])
        index.append(at[nodes[b]])
    return torch.cat(keys), torch.cat(values), torch.cat(index)


def _runs(
    seen: Sequence[_Seen],
    trees: Sequence[CandidateTree],
    prefix_lens: Sequence[int],
    shape: AttentionShape,
    chunk: int,
) -> Iterator[list[tuple[int, range]]]:
    """(request, prefix keys) in pieces that all of its nodes see, as many as are made ready together.

    Pieces of one length stand together, those of few nodes first. Neither the scores of a piece nor the
    keys of a run are much more than `chunk` numbers.
    """
    widest = max(shape.head_dim, shape.v_head_dim)
    most = max(1, chunk // (2 * shape.num_kv_heads * widest))
    pieces: list[tuple[int, range]] = []
    for b, (one, length) in enumerate(zip(seen, prefix_lens, strict=True)):
        step = max(1, min(most, chunk // (shape.num_q_heads * len(trees[b]))))
        pieces += [
            (b, range(low, min(low + step, length))) for low in range(one.shared, length, step)
        ]
    pieces.sort(key=lambda piece: (len(piece[1]), len(trees[piece[0]])))
    run: list[tuple[int, range]] = []
    held = 0
    for piece in pieces:
        if run and held + len(piece[1]) > most:
            yield run
            run, held = [], 0
        run.append(piece)
        held += len(piece[1])
    if run:
        yield run


def _alike(
    run: Sequence[tuple[int, range]], trees: Sequence[CandidateTree], heads: int, chunk: int
) -> Iterator[list[tuple[int, range]]]:
    """The pieces of a run by length, so many at once that their scores are about `chunk` numbers and
    that no more than as many again are of nodes that ask twice."""
    for length, same in groupby(run, key=lambda piece: len(piece[1])):
        alike: list[tuple[int, range]] = []
        asking = 0
        for piece in same:
            nodes = len(trees[piece[0]])
            all_of_them = nodes * (len(alike) + 1)
            if alike and (
                all_of_them * heads * length > chunk or all_of_them > 2 * (asking + nodes)
            ):
                yield alike
                alike, asking = [], 0
            alike.append(piece)
            asking += nodes
        yield alike


def _rows(first: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """(B, most nodes) nodes of each request, its last one again where it has fewer: that answer is
    dropped."""
    step = torch.arange(max(counts))
    last = torch.tensor(counts)[:, None] - 1
    return (torch.tensor(first)[:, None] + torch.minimum(step, last)).to(device, non_blocking=True)


def _by_request(held: Held, keys: int) -> Held:
    """The same with a dimension for requests of so many keys each."""
    return Held(
        held.keys.reshape(*held.keys.shape[:2], -1, keys, held.keys.shape[3]),
        held.values.reshape(len(held.values), -1, keys, held.values.shape[2]),
        held.index.reshape(-1, keys),
    )


@dataclass(frozen=True)
class _Seen:
    """Which keys each node sees: those of `lists`, and the prefix from logical index `shared` on.

    Lists count through keys of all requests, of this one its prefix from index `oldest` up to
    `shared` and then its nodes; those of the next request come from `end` on.
    """

    lists: list[list[int]]
    oldest: int
    shared: int
    end: int

    @classmethod
    def of(cls, tree: CandidateTree, prefix_len: int, window: int | None, begin: int) -> _Seen:
        """Cut every sequence prefix + path(v) where its window begins; keys count from `begin`."""
        if window is None:
            return cls(_paths(tree, begin), 0, 0, begin + len(tree))
        first = [max(0, prefix_len + depth - window + 1) for depth in tree.depth]
        shared = min(prefix_len, max(first))
        oldest = min(shared, min(first))
        nodes = begin + shared - oldest
        lists = [
            [*range(begin + low - oldest, nodes), *path[max(0, low - prefix_len) :]]
            for low, path in zip(first, _paths(tree, nodes), strict=True)
        ]
        return cls(lists, oldest, shared, nodes + len(tree))


def _paths(tree: CandidateTree, begin: int) -> list[list[int]]:
    """Nodes from the root to each node, counted from `begin`."""
    paths = [[begin]]
    for node, parent in enumerate(tree.parents[1:], start=1):
        paths.append([*paths[parent], begin + node])
    return paths


def _result(
    partial: Partial,
    visible: Tensor,
    shape: AttentionShape,
    layer: LayerParameters,
) -> PathResult:
    """Normalise, and go from (Hkv, N, G, ...) to (N, Hq, ...)."""

    def by_node(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)

    highest, score_abs = partial.largest[:2]
    bias = partial.largest[2] if len(partial.largest) == 3 else torch.zeros_like(highest)
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
