"""Outputs and log-sum-exps computed again, row by row in float64, under a law and from chosen keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.evidence import KEPT
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.kept import Kept
from treeproof.diagnosis.law import SOFTMAX, Law, Scales, is_own, own_scales
from treeproof.diagnosis.scope import Which
from treeproof.properties.bound import Bound, error_bound
from treeproof.properties.probes.quantised import codes, decoded

if TYPE_CHECKING:
    from treeproof.diagnosis.world import World


def by_heads(world: World, i: int) -> list[tuple[tuple[Key, ...], Law, list[int]]]:
    """Keys of row i, the law that they are read by, and the query heads that do so."""
    every = frozenset(range(world.ground.case.shape.num_q_heads))
    read, scope, row = world.heads, world.scope, world.ground.rows[i]
    under = every if scope.heads is None else every & scope.heads
    if scope.rows is not None and not scope.rows(row):
        under = frozenset()
    parts = []
    reading = [(world.seen[i], every)]
    if read is not None:
        reading = [(world.seen[i], every & read), (world.others[i], every - read)]
    for keys, of_keys in reading:
        for law, of_law in ((world.law, under), (SOFTMAX, every - under)):
            heads = sorted(of_keys & of_law)
            if heads:
                parts.append((keys, law, heads))
    return parts


def outputs(
    world: World, rows: Sequence[int], numerics: Numerics, capabilities: Capabilities
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (R, Hq, Dv) and lse (R, Hq) of some real rows, and the limits on the errors of both.

    The log-sum-exp is natural, with or without the sink as `capabilities` say.
    """
    made = [_row(world, i, numerics, capabilities) for i in rows]
    out, lse, limit, lse_limit = (torch.stack(parts) for parts in zip(*made, strict=True))
    return out, lse, limit, lse_limit


Numbers = tuple[Tensor, Tensor, Tensor, Tensor]
"""out, lse, limit and limit of the lse of one row, all its heads first."""

Exact = dict[str, Tensor]
"""The exact quantities of one row that the error bound asks for, all its heads first."""

_KEPT: Kept[Numbers] = Kept(4096)
_MIXED: Kept[Numbers] = Kept(4096)
_CACHES: Kept[tuple[Tensor, Tensor]] = Kept(64)


def _row(world: World, i: int, numerics: Numerics, capabilities: Capabilities) -> Numbers:
    row, parts = world.ground.rows[i], by_heads(world, i)
    made = []
    for keys, law, _ in parts:
        which = world.scope.keys if law is world.law else None
        made.append(
            _KEPT.of(
                *(world.ground, row, keys, world.written, law, which, numerics, capabilities),
                make=partial(_numbers, world, row, keys, law, which, numerics, capabilities),
            )
        )
    if len(made) == 1:
        return made[0]
    heads = tuple(tuple(heads) for *_, heads in parts)
    return _MIXED.of(*made, *map(_one_object, heads), make=partial(_mixed, made, heads))


@lru_cache(maxsize=512)
def _one_object(heads: tuple[int, ...]) -> tuple[int, ...]:
    return heads


def _mixed(made: Sequence[Numbers], heads: Sequence[tuple[int, ...]]) -> Numbers:
    """The first, and the others in these of their heads."""
    out, lse, limit, lse_limit = (t.clone() for t in made[0])
    for whole, some in zip(made[1:], heads[1:], strict=True):
        for mixed, t in zip((out, lse, limit, lse_limit), whole, strict=True):
            mixed[list(some)] = t[list(some)]
    return out, lse, limit, lse_limit


def _numbers(
    world: World,
    row: Row,
    keys: Sequence[Key],
    law: Law,
    which: Which | None,
    numerics: Numerics,
    capabilities: Capabilities,
) -> Numbers:
    one, weights, v = _exact(world, row, keys, law, which)
    bound = bounded(one, world.ground.case.shape, numerics, capabilities)
    out, limit = one["out"], bound.total[0]
    if law.sum is not None and keys:
        # A kernel's weights are off by as much as the bound allows, which may tip what is rounded.
        off = (bound.rest[0] / one["weight"]).nan_to_num(0.0, 0.0, 0.0).amax(1, keepdim=True)
        least, most = law.sum(weights * (1 - off), weights * (1 + off), v, is_own(keys, row))
        out, limit = (least + most) / 2, limit + (most - least) / 2
    lse = one["lse_sink" if capabilities.lse_includes_sink else "lse"]
    return out, lse, limit, bound.lse[0]


def bounded(
    one: Exact, shape: AttentionShape, numerics: Numerics, capabilities: Capabilities
) -> Bound:
    """How far a right kernel may be from one row, which is the only entry."""
    return error_bound(
        **{name: value[None] for name, value in one.items() if name != "count"},
        visible=one["count"].amax(0, keepdim=True),
        shape=shape,
        numerics=numerics,
        capabilities=capabilities,
    )


def _exact(
    world: World, row: Row, keys: Sequence[Key], law: Law, which: Which | None
) -> tuple[Exact, Tensor, Tensor]:
    """One row, all heads: what it comes to exactly, its weights and values.

    `which`: the keys that the law is for, all where None.
    """
    ground, shape, layer = world.ground, world.ground.case.shape, world.ground.scene.layer
    count = shape.num_q_heads
    sink = torch.full((count,), -torch.inf, dtype=torch.float64)
    if law.sinks and layer.sinks is not None:
        sink = layer.sinks.double().cpu()
    if not keys:  # what a softmax over nothing gives is free, and is nothing here
        wide = torch.zeros(count, shape.v_head_dim, dtype=torch.float64)
        flat = torch.zeros(count, dtype=torch.float64)
        return {
            "out": wide, "weight": wide, "abs_v": wide, "lse": flat - torch.inf, "lse_sink": sink,
            "score_abs": flat, "score_max": flat, "bias_abs": flat, "count": flat,
        }, flat[:, None][:, :0], wide[:, None][:, :0]  # fmt: skip
    q = ground.contents.q[row.flat].double()
    read = _by_key(world, row, keys, law, q)
    if which is not None:
        chosen, right = which(keys, row), _by_key(world, row, keys, SOFTMAX, q)
        read = tuple(
            torch.where(chosen[:, None] if a.ndim == 3 else chosen, a, b)
            for a, b in zip(read, right, strict=True)
        )
    weights, lse = law.weigh(read[-1], keys, row)
    return exactly(q, read, weights, lse, sink, shape)


def exactly(
    q: Tensor,
    read: tuple[Tensor, ...],
    weights: Tensor,
    lse: Tensor,
    sink: Tensor,
    shape: AttentionShape,
) -> tuple[Exact, Tensor, Tensor]:
    """One row, all heads, that weighs what it reads so; `read` as `scored` gives it, `sink` (Hq,)."""
    k, v, scores, bias, logits = read
    lse_sink = torch.logaddexp(lse, sink)
    weights = weights * (lse - lse_sink).exp()[:, None]
    sizes = (k.abs() @ q.abs()[..., None])[..., 0] * shape.score_scale
    return {
        "out": (weights[:, None] @ v)[:, 0],
        "weight": (weights.abs()[:, None] @ v.abs())[:, 0],
        "abs_v": v.abs().sum(1),
        "lse": lse,
        "lse_sink": lse_sink,
        "score_abs": torch.maximum(sizes.amax(1), scores.abs().amax(1)),
        "score_max": torch.maximum(logits.amax(1), sink),
        "bias_abs": torch.maximum(bias.abs().amax(1), sink.abs().nan_to_num(posinf=0.0)),
        "count": torch.full((len(k),), float(k.shape[1]), dtype=torch.float64),
    }, weights, v  # fmt: skip


def scored(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, shape: AttentionShape, law: Law
) -> tuple[Tensor, ...]:
    """K and V (Hq, n, ...) as they are read; their scores, `bias` and logits, all (Hq, n)."""
    scores = law.score(q, k, shape)
    return k, v, scores, bias, law.cap(scores, shape) - bias


def _by_key(world: World, row: Row, keys: Sequence[Key], law: Law, q: Tensor) -> tuple[Tensor, ...]:
    """K and V (Hq, n, ...) as the law reads them; its scores, biases and logits (Hq, n)."""
    shape, layer = world.ground.case.shape, world.ground.scene.layer
    k_cache, v_cache = _CACHES.of(
        world.ground, world.written, law.scales, make=partial(_caches, world, law.scales)
    )
    kv_heads = torch.tensor(law.kv_heads(shape))
    k = k_cache[[key.k for key in keys]][:, kv_heads].transpose(0, 1)
    v = v_cache[[key.v for key in keys]][:, kv_heads].transpose(0, 1)
    bias = torch.zeros(k.shape[:2], dtype=torch.float64)
    if law.distance is not None and layer.alibi_slopes is not None:
        bias = layer.alibi_slopes.double().cpu()[:, None] * law.distance(keys, row)
    return scored(q, k, v, bias, shape, law)


def _caches(world: World, scales: Scales) -> tuple[Tensor, Tensor]:
    """K and V of every slot after the launch, float64 on the CPU, as the law reads codes."""
    ground = world.ground
    laid, row_slot = ground.contents, ground.row_slot
    caches = []
    for side, (right, stale) in enumerate(((laid.k, laid.stale_k), (laid.v, laid.stale_v))):
        cache = right.clone()
        cache[ground.scene.tree_slots] = stale
        for slot, rows in world.written.items():
            row = rows[side]
            if row >= 0:
                cache[slot] = right[row_slot[row]] if row_slot[row] >= 0 else stale
            elif row != KEPT:
                cache[slot] = stale
        caches.append(_read_back(world, cache, side, scales))
    return caches[0], caches[1]


def _read_back(world: World, cache: Tensor, side: int, scales: Scales) -> Tensor:
    scene = world.ground.scene
    if scene.case.shape.kv_dtype is None:
        return cache.double()
    layer = scene.layer
    true = own_scales(layer)[side]
    return decoded(codes(cache, true, scene.stored_dtype), scales(layer)[side])
