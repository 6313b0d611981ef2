"""Layers of a model on one plan: whose queries, keys, window and parameters each of them goes by.

A layer is held against the very numbers that it was handed, so that what one gets wrong is no fault of
the next. What a statement says is said without numbers first: two that read alike need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.diagnosis.evidence import LayerSeen, LayersSeen
from treeproof.diagnosis.ground import Ground, Key
from treeproof.diagnosis.law import SOFTMAX, Law
from treeproof.diagnosis.recomputed import bounded, exactly, scored

Of = Callable[[Sequence[LayerSeen], int], int]
"""The layer that takes the place of layer i."""
Width = Callable[[Sequence[int | None], Sequence[LayerSeen], int], int | None]
"""The window of layer i, out of those of all layers."""
LawOf = Callable[[Sequence[LayerSeen], int], Law]


def own(layers: Sequence[LayerSeen], i: int) -> int:
    return i


def own_width(widths: Sequence[int | None], layers: Sequence[LayerSeen], i: int) -> int | None:
    return widths[i]


def softmax(layers: Sequence[LayerSeen], i: int) -> Law:
    return SOFTMAX


@dataclass(frozen=True)
class Layered:
    """Right as it stands. `operands`: rows of the tree are read as they come with the launch, and not
    out of a cache."""

    queries: Of = own
    keys: Of = own
    values: Of = own
    written: Of = own
    operands: bool = False
    window: Width = own_width
    law: LawOf = softmax


RIGHT = Layered()
_STALE = -1
"""Whose key lies in a slot of the tree that has not been written."""

Read = tuple[int, int, int]
"""Slot, and the layers whose key and whose value are read there."""


@dataclass(frozen=True)
class Told:
    """What a statement says of one layer: whose queries, by which law, and of each real row what it reads."""

    queries: int
    law: Law
    reads: tuple[tuple[Read, ...], ...]


@dataclass(frozen=True)
class AllTold:
    """Of each layer; and of each (layer, slot) that is written, the layer and row it then holds."""

    layers: tuple[Told, ...]
    held: Mapping[tuple[int, int], tuple[int, int]]


def told(how: Layered, ground: Ground, layers: Sequence[LayerSeen]) -> AllTold:
    """What is so of these layers on a case, which need not be the one they were seen on."""
    tree = {slot: row for row, slot in enumerate(ground.row_slot) if slot >= 0}
    widths = [ground.window if one.shape.window is not None else None for one in layers]
    cells = [dict.fromkeys(tree, _STALE) for _ in layers]
    made, held = [], {}
    for i in range(len(layers)):
        into = how.written(layers, i)
        cells[into] = dict.fromkeys(tree, i)
        held.update({(into, slot): (i, row) for slot, row in tree.items()})
        of_k, of_v = how.keys(layers, i), how.values(layers, i)
        width = how.window(widths, layers, i)

        def read(key: Key, i: int = i, of_k: int = of_k, of_v: int = of_v) -> Read:
            if key.k not in tree:
                return key.k, of_k, of_v
            return (
                (key.k, i, i) if how.operands else (key.k, cells[of_k][key.k], cells[of_v][key.k])
            )

        reads = tuple(
            tuple(
                read(key)
                for key in ground.reads(row)
                if width is None or row.position - width < key.at
            )
            for row in ground.rows
        )
        made.append(Told(how.queries(layers, i), how.law(layers, i), reads))
    return AllTold(tuple(made), held)


def same_layers(
    found: LayersSeen, how: Layered, ground: Ground, numerics: Numerics, able: Capabilities
) -> bool:
    """Whether every layer gave what a statement says, up to what is rounded, and every row lies where
    it says."""
    said = told(how, ground, found.layers)
    if found.held.keys() != said.held.keys():
        return False
    if not all(whose in found.held[place] for place, whose in said.held.items()):
        return False
    return all(
        bool(((out - layer.out[i]).abs() <= limit).all())
        for layer, one in zip(found.layers, said.layers, strict=True)
        for i, (out, limit) in enumerate(_outputs(found, layer, one, ground, numerics, able))
    )


def _outputs(
    found: LayersSeen,
    layer: LayerSeen,
    said: Told,
    ground: Ground,
    numerics: Numerics,
    able: Capabilities,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output (Hq, Dv) of each real row and how far it may be off; a wrong statement costs one row."""
    sink = torch.full((layer.shape.num_q_heads,), -torch.inf, dtype=torch.float64)
    heads = torch.tensor(said.law.kv_heads(layer.shape))

    def of(side: int, slot: int, whose: int) -> Tensor:
        return layer.stale[side] if whose == _STALE else found.layers[whose].cache[side][slot]

    for row, reads in zip(ground.rows, said.reads, strict=True):
        q = found.layers[said.queries].q[row.flat]
        k = torch.stack([of(0, slot, whose) for slot, whose, _ in reads])[:, heads].transpose(0, 1)
        v = torch.stack([of(1, slot, whose) for slot, _, whose in reads])[:, heads].transpose(0, 1)
        bias = torch.zeros(k.shape[:2], dtype=torch.float64)
        read = scored(q, k, v, bias, layer.shape, said.law)
        lse = read[-1].logsumexp(-1)
        one, *_ = exactly(q, read, (read[-1] - lse[:, None]).exp(), lse, sink, layer.shape)
        yield one["out"], bounded(one, layer.shape, numerics, able).total[0]
