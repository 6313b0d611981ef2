"""Softmax over a part of the keys, in float64, and how parts are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters

# Each product is wanted of the numbers and of their magnitudes (the error bound needs both), so
# queries, keys and values travel as a pair: as they are, and absolute.


def grouped(q: Tensor, shape: AttentionShape) -> Tensor:
    """q (N, Hq, D) to (2, Hkv, N, G, D), G query heads sharing each key-value head."""
    heads = q.view(len(q), shape.num_kv_heads, shape.group_size, shape.head_dim).transpose(0, 1)
    return torch.stack((heads, heads.abs()))


def key_pairs(k: Tensor) -> Tensor:
    """k (n, Hkv, D) to (2, Hkv, n, D)."""
    heads = k.transpose(0, 1)
    return torch.stack((heads, heads.abs()))


def value_pairs(v: Tensor) -> Tensor:
    """v (n, Hkv, Dv) to (Hkv, n, 2 * Dv)."""
    heads = v.transpose(0, 1)
    return torch.cat((heads, heads.abs()), dim=-1)


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
    """How a logit comes from q.k and a distance; `slopes` (Hkv, G) or None."""

    scale: float
    softcap: float | None
    slopes: Tensor | None

    @classmethod
    def of(cls, shape: AttentionShape, layer: LayerParameters) -> Scores:
        slopes = layer.alibi_slopes if shape.alibi else None
        if slopes is not None:
            slopes = slopes.double().view(shape.num_kv_heads, shape.group_size)
        return cls(shape.score_scale, shape.softcap, slopes)

    def logits(self, products: Tensor, at: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of products (Hkv, N, G, n), which are used up, the logits; and what was taken off of them.

        Nodes stand at `at` (N, 1), keys at `index` (N or 1, n).
        """
        scores = products.mul_(self.scale)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is None:
            return scores, None
        heads, group = self.slopes.shape
        bias = self.slopes.view(heads, 1, group, 1) * (at - index)[:, None]
        return scores - bias, bias


@dataclass(frozen=True)
class Partial:
    """Softmax over a part of the keys; exponentials are taken relative to the largest logit."""

    largest: Tensor  # (2 or 3, Hkv, N, G): logit, scale * sum |q||k|, and bias where there is one
    mass: Tensor  # (Hkv, N, G): sum of exp(logit - largest logit)
    sums: Tensor  # (Hkv, N, G, 2 * Dv): the same times v, times |v|
    plain: Tensor  # (Hkv, N or 1, 2 * Dv): sum of v, of |v|; 1 where all nodes read the same keys


def softmax_over(
    products: Tensor, at: Tensor, index: Tensor, values: Tensor, scores: Scores
) -> Partial:
    """products (2, Hkv, N, G, n), values (Hkv, N, n, 2 * Dv) or (Hkv, n, 2 * Dv) for all nodes."""
    logits, bias = scores.logits(products[0], at, index)
    highest = logits.amax(dim=-1)
    largest = [highest, products[1].amax(dim=-1).mul_(scores.scale)]  # the scale is positive
    if bias is not None:
        largest.append(bias.amax(dim=-1))
    p = logits.sub_(highest[..., None]).exp_()
    if values.dim() == 3:  # read by all nodes: one product a key-value head
        sums = (p.flatten(1, 2) @ values).view(*p.shape[:3], -1)
        plain = values.sum(dim=-2)[:, None]
    else:
        sums, plain = p @ values, values.sum(dim=-2)
    return Partial(torch.stack(largest), p.sum(dim=-1), sums, plain)


def on_own_lists(
    query: Query, held: Held, lists: list[list[int]], scores: Scores, chunk: int
) -> Partial:
    """Each node on its own list: one stack for lists of equal length, in pieces of about `chunk` numbers."""
    order = sorted(range(len(lists)), key=lambda node: len(lists[node]))
    nodes = torch.tensor(order, device=query.at.device)
    heads, at = query.heads[:, :, nodes], query.at[nodes]
    parts = []
    low = 0
    _, kv_heads, _, group, lanes = heads.shape
    width = kv_heads * group * max(lanes, held.values.shape[-1] // 2)
    for length, equal in groupby((lists[node] for node in order), key=len):
        stack = list(equal)
        most = max(1, chunk // (length * width))
        for begin in range(0, len(stack), most):
            index = torch.tensor(stack[begin : begin + most], device=at.device)
            high = low + len(index)
            products = heads[:, :, low:high] @ held.keys[:, :, index].mT
            stood = at[low:high, None]
            values = held.values[:, index]
            parts.append(softmax_over(products, stood, held.index[index], values, scores))
            low = high
    return nodes_of(one_after_another(parts), nodes.argsort())


def on_shared(query: Query, held: Held, scores: Scores) -> Partial:
    """All nodes on one slice of the prefix."""
    flat = query.heads.flatten(2, 3) @ held.keys.mT
    products = flat.view(*query.heads.shape[:4], -1)
    return softmax_over(products, query.at[:, None], held.index[None], held.values, scores)


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
        torch.cat([part.plain.expand(-1, part.mass.shape[1], -1) for part in parts], dim=1),
    )


def nodes_of(partial: Partial, index: Tensor) -> Partial:
    """Nodes `index` (n,) of a partial."""
    return Partial(
        partial.largest[:, :, index],
        partial.mass[:, index],
        partial.sums[:, index],
        partial.plain[:, index],
    )


def with_prefixes(own: Partial, parts: Sequence[Partial | None], nodes: Sequence[slice]) -> Partial:
    """`own` of all nodes, joined with the part of each request that has one."""
    shared = [part for part in parts if part is not None]
    if not shared:
        return own
    every = torch.arange(own.mass.shape[1], device=own.mass.device)
    pairs = list(zip(parts, nodes, strict=True))
    some = torch.cat([every[place] for part, place in pairs if part is not None])
    whole = joined(nodes_of(own, some), one_after_another(shared))
    if len(some) == len(every):
        return whole
    others = torch.cat([every[place] for part, place in pairs if part is None])
    back = torch.cat((some, others)).argsort()
    return nodes_of(one_after_another([whole, nodes_of(own, others)]), back)
