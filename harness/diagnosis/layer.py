"""Numbers: what a layer holds beside its activations, left out or taken wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.inputs import LayerParameters
from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.law import Law, own_scales
from treeproof.diagnosis.world import World


def _law(right: World, law: Law) -> World:
    return replace(right, law=law)


@hypothesis("softcap-missing", "scores are not capped", "attend")
def softcap_missing(right: World) -> Iterator[tuple[str, World]]:
    if right.ground.case.shape.softcap is not None:
        yield "", _law(right, Law(cap=lambda scores, shape: scores))

        def clamped(scores: Tensor, shape: AttentionShape) -> Tensor:
            assert shape.softcap is not None
            return scores.clamp(-shape.softcap, shape.softcap)

        yield "cut off instead", _law(right, Law(cap=clamped))


@hypothesis("sinks-missing", "the sinks take no part in the softmax", "attend")
def sinks_missing(right: World) -> Iterator[tuple[str, World]]:
    if right.ground.case.shape.sinks:
        yield "", _law(right, Law(sinks=False))


@hypothesis("alibi-missing", "no ALiBi bias is added to the scores", "attend")
def alibi_missing(right: World) -> Iterator[tuple[str, World]]:
    if right.ground.case.shape.alibi:
        yield "", _law(right, Law(distance=None))


@hypothesis("alibi-by-row", "the ALiBi bias counts rows instead of depths", "attend")
def alibi_by_row(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    if not ground.case.shape.alibi:
        return
    columns = [
        {slot: c for c, slot in enumerate(line) if slot >= 0}
        for line in ground.scene.ledger.columns
    ]

    def of_keys(keys: Sequence[Key], row: Row) -> Tensor:
        """Keys of the tree count by their columns too."""
        at = [columns[row.b].get(key.v, key.at) for key in keys]
        return torch.tensor([row.prefix + row.row - c for c in at], dtype=torch.float64)

    def of_query(keys: Sequence[Key], row: Row) -> Tensor:
        return torch.tensor([row.prefix + row.row - key.at for key in keys], dtype=torch.float64)

    def keys_alone(keys: Sequence[Key], row: Row) -> Tensor:
        at = [columns[row.b].get(key.v, key.at) for key in keys]
        return torch.tensor([row.position - c for c in at], dtype=torch.float64)

    yield "", _law(right, Law(distance=of_keys))
    yield "of the query", _law(right, Law(distance=of_query))
    yield "of the keys", _law(right, Law(distance=keys_alone))


Pair = tuple[Tensor, Tensor]


@hypothesis("kv-scale-missing", "codes of the cache are read without their scale", "attend")
def kv_scale_missing(right: World) -> Iterator[tuple[str, World]]:
    if right.ground.case.shape.kv_dtype is None:
        return

    def one(scale: Tensor) -> Tensor:
        return torch.ones_like(scale)

    ways: dict[str, Callable[[Tensor, Tensor], Pair]] = {
        "K and V": lambda k, v: (one(k), one(v)),
        "K": lambda k, v: (one(k), v),
        "V": lambda k, v: (k, one(v)),
    }
    yield from _scaled(right, ways)


@hypothesis("kv-scale-of-other", "codes of the cache are read by another scale", "attend")
def kv_scale_of_other(right: World) -> Iterator[tuple[str, World]]:
    if right.ground.case.shape.kv_dtype is None:
        return
    ways: dict[str, Callable[[Tensor, Tensor], Pair]] = {
        "V by K's": lambda k, v: (k, k),
        "K by V's": lambda k, v: (v, v),
        "K and V exchanged": lambda k, v: (v, k),
        "of the next head": lambda k, v: (k.roll(-1), v.roll(-1)),
        "of the previous head": lambda k, v: (k.roll(1), v.roll(1)),
        "of the first head": lambda k, v: (k[:1].expand_as(k), v[:1].expand_as(v)),
        "K by the first head's": lambda k, v: (k[:1].expand_as(k), v),
        "V by the first head's": lambda k, v: (k, v[:1].expand_as(v)),
        "K by the next head's": lambda k, v: (k.roll(-1), v),
        "V by the next head's": lambda k, v: (k, v.roll(-1)),
        "squared": lambda k, v: (k * k, v * v),
        "K squared": lambda k, v: (k * k, v),
        "V squared": lambda k, v: (k, v * v),
    }
    yield from _scaled(right, ways)


def _scaled(
    right: World, ways: dict[str, Callable[[Tensor, Tensor], Pair]]
) -> Iterator[tuple[str, World]]:
    for detail, way in ways.items():

        def scales(layer: LayerParameters, way: Callable[[Tensor, Tensor], Pair] = way) -> Pair:
            return way(*own_scales(layer))

        yield detail, _law(right, Law(scales=scales))


LAYER: tuple[Hypothesis, ...] = (
    softcap_missing,
    sinks_missing,
    alibi_by_row,
    alibi_missing,
    kv_scale_missing,
    kv_scale_of_other,
)
