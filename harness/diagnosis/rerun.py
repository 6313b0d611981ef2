"""Attention run again as a statement has it: chosen keys, a chosen law, the cache as it was written.

Each row is one plain sequence of keys in float64. Under the truth this is `oracles.path` to the
last digits, which a test holds it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.diagnosis.evidence import KEPT, PADDED, Attended, Counts, KernelReads, Writes
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.law import own_scales
from treeproof.properties.bound import error_bound
from treeproof.properties.probes.quantised import codes, decoded
from treeproof.properties.tables import Slots

if TYPE_CHECKING:
    from treeproof.diagnosis.world import World


def attended(
    world: World, like: Sequence[KernelReads], numerics: Numerics, capabilities: Capabilities
) -> Attended:
    """What launches would show: counts of the slots in `like`, outputs with their limits, writes."""
    reads, unowned = _reads(world, like)
    every = range(len(world.ground.rows))
    out, lse, limit, lse_limit = outputs(world, every, numerics, capabilities)
    return Attended(reads, unowned, out, lse, writes_of(world), limit, lse_limit)


def writes_of(world: World) -> Writes:
    """Slots that change, the pad slot left out."""
    pad = world.ground.case.layout.pad_slot
    row_slot = world.ground.row_slot

    def code(row: int) -> int:
        return PADDED if row >= 0 and row_slot[row] < 0 else row

    left = world.written if world.left is None else world.left
    found = {slot: (code(k), code(v)) for slot, (k, v) in left.items() if slot != pad}
    tree = set(row_slot)
    # Before a launch the tree's own slots hold what padded rows bring.
    return {
        slot: holds
        for slot, holds in found.items()
        if not (slot in tree and set(holds) <= {PADDED, KEPT})
    }


# --- tomography ----------------------------------------------------------------------------------


def row_weights(world: World, i: int, origin: Slots) -> tuple[Counts, Counts]:
    """(num_slots + 1,) least and most weight over the heads that real row i gives each slot's own V;
    the last is what nobody holds. `origin` as `origins` gives it."""
    row = world.ground.rows[i]
    if world.law.plain and world.heads is None:
        counts = _counts(world.seen[i], origin)
        return counts, counts
    parts = np.concatenate(
        [_weights(world, row, keys, origin, len(heads)) for keys, heads in _by_heads(world, i)]
    )
    return parts.min(0), parts.max(0)


def as_counts(low: Counts, high: Counts) -> tuple[Counts, Counts]:
    """Weights of the slots looked at as counts, as the probe does: the smallest is one key's."""
    positive = high[high > 0]
    scale = 1 / positive.min() if len(positive) else 0.0
    return low * scale, high * scale


def _reads(
    world: World, like: Sequence[KernelReads]
) -> tuple[tuple[KernelReads, ...], frozenset[int]]:
    ground, origin = world.ground, origins(world)
    weights = [row_weights(world, i, origin) for i in range(len(ground.rows))]
    unowned = frozenset(
        row.flat for row, (_, high) in zip(ground.rows, weights, strict=True) if high[-1] > 0
    )
    found = []
    for reading in like:
        columns = list(reading.slots)
        own = [w for row, w in zip(ground.rows, weights, strict=True) if row.b == reading.request]
        pairs = [as_counts(low[columns], high[columns]) for low, high in own]
        low, high = (np.stack([pair[side] for pair in pairs]) for side in (0, 1))
        found.append(with_fields(reading, low=low, high=high))
    return tuple(found), unowned


def _by_heads(world: World, i: int) -> list[tuple[tuple[Key, ...], list[int]]]:
    """Keys of row i, and the query heads that read them."""
    every = range(world.ground.case.shape.num_q_heads)
    if world.heads is None:
        return [(world.seen[i], list(every))]
    inside = [head for head in every if head in world.heads]
    outside = [head for head in every if head not in world.heads]
    parts = [(world.seen[i], inside), (world.others[i], outside)]
    return [(keys, heads) for keys, heads in parts if heads]


def _counts(keys: Sequence[Key], origin: Slots) -> Counts:
    """Share of each slot among the keys, all of one weight."""
    slots = len(origin)
    held = origin[[key.v for key in keys]]
    counts = np.bincount(np.where(held < 0, slots, held), minlength=slots + 1)
    share: Counts = counts / max(1, len(keys))
    return share


def _weights(world: World, row: Row, keys: Sequence[Key], origin: Slots, heads: int) -> Counts:
    """(heads, num_slots + 1): the same for some heads of a row, under the world's law."""
    slots = len(origin)
    found = np.zeros((heads, slots + 1))
    if world.law.plain or not keys:
        found[:] = _counts(keys, origin)
        return found
    held = origin[[key.v for key in keys]]
    scores = torch.zeros(heads, len(keys), dtype=torch.float64)
    weights, _ = world.law.weigh(scores, keys, row)
    np.add.at(found.T, np.where(held < 0, slots, held), weights.numpy().T)
    return found


def origins(world: World) -> Slots:
    """(num_slots,) slot whose right V each slot holds after the launch; -1: no request's."""
    row_slot = world.ground.row_slot
    origin = world.ground.bare.copy()
    for slot, (_, row) in world.written.items():
        if row != KEPT:
            origin[slot] = row_slot[row] if row >= 0 else -1
    return origin


# --- random data ---------------------------------------------------------------------------------


def outputs(
    world: World, rows: Sequence[int], numerics: Numerics, capabilities: Capabilities
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (R, Hq, Dv) and lse (R, Hq) of some real rows, and the limits on the errors of both.

    The log-sum-exp is natural, with or without the sink as `capabilities` say.
    """
    found = [_row(world, i, numerics, capabilities) for i in rows]
    out, lse, limit, lse_limit = (torch.cat(parts) for parts in zip(*found, strict=True))
    return out, lse, limit, lse_limit


_Numbers = tuple[Tensor, Tensor, Tensor, Tensor]


def _row(world: World, i: int, numerics: Numerics, capabilities: Capabilities) -> _Numbers:
    """The same of one row: most statements leave most rows as they are, so it is kept."""
    others = world.others[i] if world.others else ()
    how = (world.heads, world.law, _written(world), numerics, capabilities)
    place = ("row", i, world.seen[i], others, *how)
    found: _Numbers = world.ground.kept(place, lambda: _computed(world, i, numerics, capabilities))
    return found


def _written(world: World) -> tuple[tuple[int, tuple[int, int]], ...]:
    return tuple(world.written.items())


def _computed(world: World, i: int, numerics: Numerics, capabilities: Capabilities) -> _Numbers:
    ground = world.ground
    shape = ground.case.shape
    k_cache, v_cache = ground.kept(("caches", world.law, _written(world)), lambda: _caches(world))
    row = ground.rows[i]
    q = ground.contents.q[row.flat].double()
    one: dict[str, Tensor] = {}
    for keys, heads in _by_heads(world, i):
        for name, value in _one(world, row, keys, heads, q, k_cache, v_cache).items():
            blank = value.new_zeros(shape.num_q_heads, *value.shape[1:])
            one.setdefault(name, blank)[heads] = value
    stacked = {name: value[None] for name, value in one.items()}
    bound = error_bound(
        **{name: value for name, value in stacked.items() if name != "count"},
        visible=stacked["count"].amax(1),
        shape=shape,
        numerics=numerics,
        capabilities=capabilities,
    )
    lse = stacked["lse_sink" if capabilities.lse_includes_sink else "lse"]
    return stacked["out"], lse, bound.total, bound.lse


def _one(
    world: World,
    row: Row,
    keys: Sequence[Key],
    heads: list[int],
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> dict[str, Tensor]:
    """Some heads of one row: the exact quantities that the error bound asks for."""
    shape, law, layer = world.ground.case.shape, world.law, world.ground.scene.layer
    sink = torch.full((len(heads),), -torch.inf, dtype=torch.float64)
    if law.sinks and layer.sinks is not None:
        sink = layer.sinks.double().cpu()[heads]
    if not keys:  # what a softmax over nothing gives is free, and is nothing here
        wide = torch.zeros(len(heads), shape.v_head_dim, dtype=torch.float64)
        flat = torch.zeros(len(heads), dtype=torch.float64)
        return {
            "out": wide, "weight": wide, "abs_v": wide, "lse": flat - torch.inf, "lse_sink": sink,
            "score_abs": flat, "score_max": flat, "bias_abs": flat, "count": flat,
        }  # fmt: skip
    kv_heads = torch.tensor(heads) // shape.group_size
    k = k_cache[[key.k for key in keys]][:, kv_heads].transpose(0, 1)  # (h, n, D)
    v = v_cache[[key.v for key in keys]][:, kv_heads].transpose(0, 1)
    mine = q[heads]
    scores = law.score(mine, k, shape)
    bias = torch.zeros_like(scores)
    if law.distance is not None and layer.alibi_slopes is not None:
        slopes = layer.alibi_slopes.double().cpu()[heads]
        bias = slopes[:, None] * law.distance(keys, row)
    logits = law.cap(scores, shape) - bias
    weights, lse = law.weigh(logits, keys, row)
    lse_sink = torch.logaddexp(lse, sink)
    weights = weights * (lse - lse_sink).exp()[:, None]
    p = weights.abs()[:, None]
    sizes = (k.abs() @ mine.abs()[..., None])[..., 0] * shape.score_scale
    return {
        "out": law.sum(weights, v),
        "weight": (p @ v.abs())[:, 0],
        "abs_v": v.abs().sum(1),
        "lse": lse,
        "lse_sink": lse_sink,
        "score_abs": torch.maximum(sizes.amax(1), scores.abs().amax(1)),
        "score_max": torch.maximum(logits.amax(1), sink),
        "bias_abs": torch.maximum(bias.abs().amax(1), sink.abs().nan_to_num(posinf=0.0)),
        "count": torch.full((len(heads),), float(len(keys)), dtype=torch.float64),
    }


def _caches(world: World) -> tuple[Tensor, Tensor]:
    """K and V of every slot after the launch, float64 on the CPU, as the world reads codes."""
    ground = world.ground
    laid, row_slot = ground.contents, ground.row_slot
    found = []
    for side, (right, stale) in enumerate(((laid.k, laid.stale_k), (laid.v, laid.stale_v))):
        cache = right.clone()
        cache[ground.scene.tree_slots] = stale
        for slot, rows in world.written.items():
            row = rows[side]
            if row >= 0:
                cache[slot] = right[row_slot[row]] if row_slot[row] >= 0 else stale
            elif row != KEPT:
                cache[slot] = stale
        found.append(_read_back(world, cache, side))
    return found[0], found[1]


def _read_back(world: World, cache: Tensor, side: int) -> Tensor:
    scene = world.ground.scene
    if scene.case.shape.kv_dtype is None:
        return cache.double()
    layer = scene.layer
    true = own_scales(layer)[side]
    return decoded(codes(cache, true, scene.stored_dtype), world.law.scales(layer)[side])
