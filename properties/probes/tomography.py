"""Probe 1, tomography: which values a row read, and how often.

With q = 0 the softmax is uniform over whatever a row reads. V is one-hot: a slot's channel, so an
output row is the list of channels read, each divided by the number n of keys read. Two channels
are kept apart: *other* (held by a request but not tagged in this launch) and *unowned* (free pages,
page tails, stale contents, padding), so a launch adds up to 1. Tags stand in every KV head and are
read from every query head; the largest and the smallest weight over all heads both count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.properties.probes.launch import AttendCall, Contents, Outputs, zeros
from treeproof.properties.scene import Scene


@dataclass(frozen=True)
class Weights:
    """Raw evidence of one or more launches: per row, the weight of each tag, float64, on the device.

    `low`, `high` (T, tags): smallest and largest over the query heads. `unowned` (T,): largest
    over heads and launches.
    """

    low: Tensor
    high: Tensor
    unowned: Tensor


def channels(scene: Scene) -> int:
    """Tags one launch can carry."""
    return scene.case.shape.v_head_dim - 2


def weigh(
    attend: AttendCall, scene: Scene, x: VerifyInput, tags: Sequence[Sequence[int]]
) -> Weights:
    """Launch as often as needed to weigh every tag; a tag is a set of slots sharing a channel."""
    shape, per_launch = scene.case.shape, channels(scene)
    other_channel, unowned_channel = per_launch, per_launch + 1
    # Outputs near 1 keep half-precision weights out of the subnormal range.
    keys = max(r.prefix_len + r.num_nodes for r in scene.case.requests)
    largest = 6 if shape.kv_dtype else 12  # codes of either kind hold 64 exactly
    amplitude = 2.0 ** min(largest, max(0, math.ceil(math.log2(keys))))
    q = torch.zeros(
        scene.num_rows, shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    k = zeros(scene, shape.head_dim) + 1
    stale_v = zeros(scene, shape.v_head_dim)[0]
    stale_v[:, unowned_channel] = amplitude
    # Slots of a launch stand together, each with its channel.
    sizes = [len(tag) for tag in tags]
    number = np.repeat(np.arange(len(tags)), sizes)
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    slots = np.fromiter(chain.from_iterable(tags), dtype=np.int64, count=len(number))
    slot, own_channel = scene.on_device(np.stack((slots, number % per_launch)))
    usual = torch.where(scene.owned, other_channel, unowned_channel)
    starts = range(0, max(1, len(tags)), per_launch)

    def tagged(start: int) -> Contents:
        now = slice(*ends[[start, min(start + per_launch, len(tags))]].tolist())
        channel = usual.index_copy(0, slot[now], own_channel[now])
        v = zeros(scene, shape.v_head_dim)
        v.scatter_(2, channel[:, None, None].expand(-1, shape.num_kv_heads, 1), amplitude)
        return Contents(q, k, v, k[0], stale_v)

    low, high, unowned = [], [], []
    outs = Outputs(attend, scene, x, map(tagged, starts), "tomography")
    for start, out in zip(starts, outs, strict=True):
        weight = out.double() / amplitude
        least, most = weight.amin(1), weight.amax(1)
        count = min(per_launch, len(tags) - start)
        low.append(least[:, :count])
        high.append(most[:, :count])
        unowned.append(most[:, unowned_channel])
    outs.finite.require()
    return Weights(torch.cat(low, 1), torch.cat(high, 1), torch.stack(unowned).amax(0))
