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

import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.properties.probes.launch import AttendCall, Contents, outputs, zeros
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
        len(scene.rows), shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    k = zeros(scene, shape.head_dim) + 1
    stale_v = zeros(scene, shape.v_head_dim)[0]
    stale_v[:, unowned_channel] = amplitude
    groups = [tags[start : start + per_launch] for start in range(0, max(1, len(tags)), per_launch)]

    def tagged(group: Sequence[Sequence[int]]) -> Contents:
        channel = torch.where(scene.owned, other_channel, unowned_channel)
        slots = [slot for tag in group for slot in tag]
        chosen = [c for c, tag in enumerate(group) for _ in tag]
        channel[torch.tensor(slots, device=scene.device, dtype=torch.int64)] = torch.tensor(
            chosen, device=scene.device, dtype=torch.int64
        )
        v = zeros(scene, shape.v_head_dim)
        v.scatter_(2, channel[:, None, None].expand(-1, shape.num_kv_heads, 1), amplitude)
        return Contents(q, k, v, k[0], stale_v)

    low, high, unowned = [], [], []
    outs = outputs(attend, scene, x, map(tagged, groups), "tomography")
    for group, out in zip(groups, outs, strict=True):
        weight = out.double() / amplitude
        least, most = weight.amin(1), weight.amax(1)
        low.append(least[:, : len(group)])
        high.append(most[:, : len(group)])
        unowned.append(most[:, unowned_channel])
    return Weights(torch.cat(low, 1), torch.cat(high, 1), torch.stack(unowned).amax(0))
