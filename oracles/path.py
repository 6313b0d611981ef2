"""The truth: node v of a tree is the last position of an ordinary sequence, prefix + path(v).

What a node sees is a list of keys, and lists are all there is here (`own_keys`): the part of the
prefix that every node of a request sees is a slice, read once for all of them, and the rest of each
list is gathered by itself. `path_naive` is the same thing one path at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.own_keys import OwnKeys
from treeproof.oracles.partial import (
    Held,
    Partial,
    Query,
    Scores,
    grouped,
    join_into,
    key_pairs,
    nodes_of,
    on_own_lists,
    on_shared,
    value_pairs,
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
    device = q[0].device
    chunk = CHUNK[device.type]
    lists = OwnKeys.of(trees, prefix_lens, shape.window)
    at = torch.from_numpy(lists.at).to(device)
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
    own = held(*_listed(lists, bounds, k_prefix, v_prefix, k_tree, v_tree, at))
    whole = on_own_lists(query, own, lists, scores, chunk)
    every = torch.arange(max(prefix_lens), device=device)
    for run in _runs(lists.shared, trees, prefix_lens, shape, chunk):
        together = held(
            _joined([k_prefix[b][keys.start : keys.stop] for b, keys in run]),
            _joined([v_prefix[b][keys.start : keys.stop] for b, keys in run]),
            _joined([every[keys.start : keys.stop] for _, keys in run]),
        )
        begin = 0
        for alike in _alike(run, trees, shape.num_q_heads, chunk):
            requests, keys = [b for b, _ in alike], len(alike[0][1])
            here = together.of(slice(begin, begin + keys * len(alike)))
            begin += keys * len(alike)
            asking, own_answers, nodes = _asking(
                [bounds[b] for b in requests], [len(trees[b]) for b in requests], device
            )
            found = on_shared(
                Query(query.heads[:, :, asking], at[asking]), _by_request(here, keys), scores
            )
            join_into(whole, nodes, nodes_of(found, own_answers))
    return _result(whole, torch.from_numpy(lists.visible).to(device), shape, layer)


def _joined(pieces: list[Tensor]) -> Tensor:
    """One after the other along dimension 0; one alone is not copied."""
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def _listed(
    lists: OwnKeys,
    bounds: Sequence[int],
    k_prefix: Sequence[Tensor],
    v_prefix: Sequence[Tensor],
    k_tree: Sequence[Tensor],
    v_tree: Sequence[Tensor],
    at: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and logical indices that the lists count through."""
    keys, values, index = [], [], []
    for b, (oldest, shared) in enumerate(zip(lists.oldest, lists.shared, strict=True)):
        if oldest < shared:
            keys.append(k_prefix[b][oldest:shared])
            values.append(v_prefix[b][oldest:shared])
            index.append(torch.arange(oldest, shared, device=at.device))
        keys.append(k_tree[b])
        values.append(v_tree[b])
        index.append(at[bounds[b] : bounds[b + 1]])
    return torch.cat(keys), torch.cat(values), torch.cat(index)


def _runs(
    shared: Sequence[int],
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
    for b, (first, length) in enumerate(zip(shared, prefix_lens, strict=True)):
        step = max(1, min(most, chunk // (shape.num_q_heads * len(trees[b]))))
        pieces += [(b, range(low, min(low + step, length))) for low in range(first, length, step)]
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
    that no more than as many again are of nodes that ask twice. No two are of one request: it has more
    than one piece of a length only where one by itself fills the scores or the run."""
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


def _asking(
    first: Sequence[int], counts: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, most nodes) nodes of each request, its last one again where it has fewer; which of those
    (n,) ask for themselves, and as which nodes (n,).
    """
    most, count = max(counts), np.array(counts)
    asking = np.array(first)[:, None] + np.minimum(np.arange(most), count[:, None] - 1)
    skipped = np.arange(len(count)) * most - (np.cumsum(count) - count)
    itself = np.arange(count.sum()) + np.repeat(skipped, count)
    told = np.concatenate((asking.ravel(), itself, asking.ravel()[itself]))
    on_device = torch.from_numpy(told).to(device, non_blocking=True)
    own, nodes = on_device[asking.size :].view(2, -1)
    return on_device[: asking.size].view(asking.shape), own, nodes


def _by_request(held: Held, keys: int) -> Held:
    """The same with a dimension for requests of so many keys each."""
    return Held(
        held.keys.reshape(*held.keys.shape[:2], -1, keys, held.keys.shape[3]),
        held.values.reshape(len(held.values), -1, keys, held.values.shape[2]),
        held.index.reshape(-1, keys),
    )


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
