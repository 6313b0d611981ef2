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

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.diagnosis.evidence import KEPT, PADDED, Attended, Counts, KernelReads, Writes
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.kept import Kept
from treeproof.diagnosis.law import Law
from treeproof.diagnosis.recomputed import by_heads, outputs
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
        [_weights(law, row, keys, origin, len(heads)) for keys, law, heads in by_heads(world, i)]
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


def _counts(keys: Sequence[Key], origin: Slots) -> Counts:
    """Share of each slot among the keys, all of one weight."""
    slots = len(origin)
    held = origin[[key.v for key in keys]]
    counts = np.bincount(np.where(held < 0, slots, held), minlength=slots + 1)
    share: Counts = counts / max(1, len(keys))
    return share


def _weights(law: Law, row: Row, keys: Sequence[Key], origin: Slots, heads: int) -> Counts:
    """(heads, num_slots + 1): the same for some heads of a row, under a law."""
    slots = len(origin)
    found = np.zeros((heads, slots + 1))
    if law.plain or not keys:
        found[:] = _counts(keys, origin)
        return found
    held = origin[[key.v for key in keys]]
    scores = torch.zeros(heads, len(keys), dtype=torch.float64)
    weights, _ = law.weigh(scores, keys, row)
    np.add.at(found.T, np.where(held < 0, slots, held), weights.numpy().T)
    return found


_ORIGINS: Kept[Slots] = Kept(256)


def origins(world: World) -> Slots:
    """(num_slots,) slot whose right V each slot holds after the launch; -1: no request's."""
    return _ORIGINS.of(world.ground, world.written, make=lambda: _origins(world))


def _origins(world: World) -> Slots:
    row_slot = world.ground.row_slot
    origin = world.ground.bare.copy()
    for slot, (_, row) in world.written.items():
        if row != KEPT:
            origin[slot] = row_slot[row] if row >= 0 else -1
    return origin
