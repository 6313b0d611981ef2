"""Softmax over a part of the keys, in float64, and how parts are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.oracles.own_keys import OwnKeys

# Each product is wanted of the numbers and of their magnitudes (the error bound needs both), so
# queries, keys and values travel as a pair: as they are, and absolute.


def grouped(q: Tensor, shape: AttentionShape) -> Tensor:
    """q (N, Hq, D) to (2, Hkv, N, G, D), G query heads sharing each key-value head, times the scale."""
    heads = q.view(len(q), shape.num_kv_heads, shape.group_size, shape.head_dim).transpose(0, 1)
    heads = heads * shape.score_scale
    return torch.stack((heads, heads.abs()))


def key_pairs(k: Tensor) -> Tensor:
    """k (n, Hkv, D) of any float dtype to (2, Hkv, n, D) in float64."""
    pair = k.new_empty(2, k.shape[1], k.shape[0], k.shape[2], dtype=torch.float64)
    pair[0] = k.transpose(0, 1)
    torch.abs(pair[0], out=pair[1])
    return pair


def value_pairs(v: Tensor) -> Tensor:
    """v (n, Hkv, Dv) of any float dtype to (Hkv, n, 2 * Dv) in float64."""
    pair = v.new_empty(v.shape[1], v.shape[0], 2 * v.shape[2], dtype=torch.float64)
    heads, sizes = pair.chunk(2, dim=-1)
    heads.copy_(v.transpose(0, 1))
    torch.abs(heads, out=sizes)
    return pair


@dataclass(frozen=True)
class Query:
    """Queries (2, Hkv, N, G, D), and the logical index (N,) that each stands at."""

    heads: Tensor
    at: Tensor


@dataclass(frozen=True)
class Held:
    """Keys (2, Hkv, n, D), values (Hkv, n, 2 * Dv), and the logical index (n,) of each."""

    keys: Tensor
    values: Tensor
    index: Tensor

    def of(self, some: slice) -> Held:
        return Held(self.keys[:, :, some], self.values[:, some], self.index[some])


@dataclass(frozen=True)
class Scores:
    """How a logit comes from a scaled q.k and a distance; `slopes` (Hkv, G) or None."""

    softcap: float | None
    slopes: Tensor | None

    @classmethod
    def of(cls, shape: AttentionShape, layer: LayerParameters) -> Scores:
        slopes = layer.alibi_slopes if shape.alibi else None
        if slopes is not None:
            slopes = slopes.double().view(shape.num_kv_heads, shape.group_size)
        return cls(shape.softcap, slopes)

    def capped(self, products: Tensor) -> Tensor:
        """`products` of any shape, which are used up."""
        if self.softcap is None:
            return products
        return products.div_(self.softcap).tanh_().mul_(self.softcap)


@dataclass(frozen=True)
class Partial:
    """Softmax over a part of the keys; exponentials are taken relative to the largest logit."""

    largest: Tensor  # (2 or 3, Hkv, N, G): logit, scale * sum |q||k|, and bias where there is one
    mass: Tensor  # (Hkv, N, G): sum of exp(logit - largest logit)
    sums: Tensor  # (Hkv, N, G, 2 * Dv): the same times v, times |v|
    plain: Tensor  # (Hkv, N, 2 * Dv): sum of v, of |v|


def on_own_lists(query: Query, held: Held, lists: OwnKeys, scores: Scores, chunk: int) -> Partial:
    """Each node on its own list: a pair of node and key after the other, about `chunk` numbers a time."""
    width = query.heads[:, :, 0].numel() + held.values[:, 0].numel() * query.heads.shape[3]
    device, end = query.at.device, np.cumsum(lists.counts)
    parts, low, before = [], 0, 0
    while low < len(end):
        high = max(low + 1, int(np.searchsorted(end, before + chunk // width, "right")))
        told = torch.from_numpy(
            np.concatenate((lists.counts[low:high], lists.keys[before : end[high - 1]]))
        ).to(device, non_blocking=True)
        some = Query(query.heads[:, :, low:high], query.at[low:high])
        parts.append(_on_pairs(some, held, told[: high - low], told[high - low :], scores))
        low, before = high, int(end[high - 1])
    return one_after_another(parts)


def _on_pairs(query: Query, held: Held, counts: Tensor, key: Tensor, scores: Scores) -> Partial:
    """Node i on the next `counts[i]` of the keys `key` (pairs,)."""
    node = torch.arange(len(counts), device=key.device).repeat_interleave(
        counts, output_size=len(key)
    )

    def over_keys(values: Tensor, how: str) -> Tensor:
        """(pairs, ...) to (N, ...)."""
        return torch.segment_reduce(values, how, lengths=counts, axis=0, unsafe=True)

    asked = query.heads.permute(2, 0, 1, 3, 4)[node]  # (pairs, 2, Hkv, G, D)
    products = (asked * held.keys.permute(2, 0, 1, 3)[key][:, :, :, None]).sum(-1)
    logits = scores.capped(products[:, 0].contiguous())  # (pairs, Hkv, G)
    largest = []
    if scores.slopes is not None:
        bias = scores.slopes * (query.at[node] - held.index[key])[:, None, None]
        logits, largest = logits - bias, [over_keys(bias, "max")]
    highest = over_keys(logits, "max")
    largest = [highest, over_keys(products[:, 1].contiguous(), "max"), *largest]
    p = (logits - highest[node]).exp()
    values = held.values.transpose(0, 1)[key]  # (pairs, Hkv, 2 * Dv)
    return Partial(
        torch.stack([each.transpose(0, 1) for each in largest]),
        over_keys(p, "sum").transpose(0, 1),
        over_keys(p[..., None] * values[:, :, None], "sum").transpose(0, 1),
        over_keys(values, "sum").transpose(0, 1),
    )


def on_shared(query: Query, held: Held, scores: Scores) -> Partial:
    """All nodes on one slice of the prefix, of several requests at once.

    `query.heads` is (2, Hkv, B, N, G, D) here and `query.at` (B, N), `held` (2, Hkv, B, n, D),
    (Hkv, B, n, 2 * Dv) and (B, n): request i's nodes on request i's keys. The result has B before N,
    and N of 1 in `plain`: all nodes of a request read the same keys.
    """
    asked = query.heads
    products = (asked.flatten(3, 4) @ held.keys.mT).view(*asked.shape[:5], -1)
    logits, largest = scores.capped(products[0]), [products[1].amax(dim=-1)]  # (Hkv, B, N, G, n)
    if scores.slopes is not None:
        distance = query.at[:, :, None] - held.index[:, None]
        bias = scores.slopes[:, None, None, :, None] * distance[:, :, None]
        logits = logits - bias
        largest.append(bias.amax(dim=-1))
    highest = logits.amax(dim=-1)
    p = logits.sub_(highest[..., None]).exp_()
    sums = (p.flatten(2, 3) @ held.values).view(*p.shape[:4], -1)
    plain = held.values.sum(dim=-2)[:, :, None]
    return Partial(torch.stack((highest, *largest)), p.sum(dim=-1), sums, plain)


def joined(a: Partial, b: Partial) -> Partial:
    """Softmax over the keys of both parts."""
    largest = torch.maximum(a.largest, b.largest)
    of_a, of_b = (a.largest[0] - largest[0]).exp(), (b.largest[0] - largest[0]).exp()
    return Partial(
        largest,
        a.mass * of_a + b.mass * of_b,
        a.sums * of_a[..., None] + b.sums * of_b[..., None],
        a.plain + b.plain,
    )


def one_after_another(parts: Sequence[Partial]) -> Partial:
    return Partial(
        torch.cat([part.largest for part in parts], dim=2),
        torch.cat([part.mass for part in parts], dim=1),
        torch.cat([part.sums for part in parts], dim=1),
        torch.cat([part.plain for part in parts], dim=1),
    )


def nodes_of(partial: Partial, index: Tensor) -> Partial:
    """Nodes `index` (n,) of what `on_shared` gives, counted through all of its requests."""
    plain = partial.plain.expand(-1, -1, partial.mass.shape[2], -1)
    return Partial(
        partial.largest.flatten(2, 3)[:, :, index],
        partial.mass.flatten(1, 2)[:, index],
        partial.sums.flatten(1, 2)[:, index],
        plain.flatten(1, 2)[:, index],
    )


def join_into(whole: Partial, nodes: Tensor, part: Partial) -> None:
    """Join `part`, of n different nodes, into these (n,) nodes of `whole`."""
    was = Partial(
        whole.largest[:, :, nodes],
        whole.mass[:, nodes],
        whole.sums[:, nodes],
        whole.plain[:, nodes],
    )
    now = joined(was, part)
    whole.largest.index_copy_(2, nodes, now.largest)
    whole.mass.index_copy_(1, nodes, now.mass)
    whole.sums.index_copy_(1, nodes, now.sums)
    whole.plain.index_copy_(1, nodes, now.plain)
