"""What a launch leaves behind for the next layer's on the same plan: a cache, a window, a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.evidence import LayerSeen
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.law import SOFTMAX, Law
from treeproof.diagnosis.layered import Layered, Of
from treeproof.diagnosis.world import World

Ways = Iterator[tuple[str, World]]
_Layers = Sequence[LayerSeen]


def _so(right: World, how: Layered) -> World:
    return replace(right, layered=how)


def _of_plan(layers: _Layers, i: int) -> list[int]:
    """The layers up to this one that ran on its plan."""
    return [j for j in range(i + 1) if layers[j].plan == layers[i].plan]


def _is_first(layers: _Layers, i: int) -> bool:
    return _of_plan(layers, i) == [i]


_ANOTHER: Mapping[str, Of] = {
    "the first of its plan": lambda layers, i: _of_plan(layers, i)[0],
    "the one before on its plan": lambda layers, i: _of_plan(layers, i)[-2:][0],
    "the first": lambda layers, i: 0,
    "the one before": lambda layers, i: max(0, i - 1),
}


@hypothesis(
    "cache-of-another-layer", "a layer reads keys or values out of another layer's cache", "layers",
    narrow="no",
)  # fmt: skip
def cache_of_another_layer(right: World) -> Ways:
    for whose, of in _ANOTHER.items():
        yield f"that of {whose}", _so(right, Layered(keys=of, values=of))
        yield f"its keys, of {whose}", _so(right, Layered(keys=of))
        yield f"its values, of {whose}", _so(right, Layered(values=of))
        prefix = Layered(keys=of, values=of, operands=True)
        yield f"those of the prefix, of {whose}", _so(right, prefix)
        both = Layered(keys=of, values=of, written=of)
        yield f"that of {whose}, and writes there, too", _so(right, both)


@hypothesis(
    "rows-written-to-another-layer", "the rows of a layer are written to another layer's cache",
    "layers", narrow="no",
)  # fmt: skip
def rows_written_to_another_layer(right: World) -> Ways:
    for whose, of in _ANOTHER.items():
        yield f"that of {whose}", _so(right, Layered(written=of, operands=True))
        yield f"that of {whose}, and looked for in its own", _so(right, Layered(written=of))


@hypothesis(
    "queries-of-another-layer", "the rows of a layer ask with the queries of another one", "layers",
    narrow="no",
)  # fmt: skip
def queries_of_another_layer(right: World) -> Ways:
    for whose, of in _ANOTHER.items():
        yield f"of {whose}", _so(right, Layered(queries=of))
        yield f"of {whose}, in its cache", _so(right, Layered(queries=of, keys=of, values=of))


@hypothesis(
    "window-of-another-layer", "a layer reads what another layer's window leaves, or is left none",
    "layers", narrow="no",
)  # fmt: skip
def window_of_another_layer(right: World) -> Ways:
    def spent(widths: Sequence[int | None], layers: _Layers, i: int) -> int | None:
        return widths[i] if _is_first(layers, i) else None

    def of_plan(widths: Sequence[int | None], layers: _Layers, plan: int) -> int | None:
        return next(w for w, one in zip(widths, layers, strict=True) if one.plan == plan)

    if right.ground.window is None:
        return
    yield "none past the first of its plan", _so(right, Layered(window=spent))
    yield (
        "that of the last that was planned",
        _so(
            right,
            Layered(window=lambda w, layers, i: of_plan(w, layers, max(x.plan for x in layers))),
        ),
    )
    yield (
        "that of the first that was planned",
        _so(right, Layered(window=lambda w, layers, i: of_plan(w, layers, 0))),
    )
    yield (
        "that of the one before",
        _so(right, Layered(window=lambda w, layers, i: w[max(0, i - 1)])),
    )


def _uncapped(scores: Tensor, shape: AttentionShape) -> Tensor:
    return scores


def _by_lanes(q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    """Scaled as where a layer names no scale."""
    return (k @ q[..., None])[..., 0] / math.sqrt(shape.head_dim)


_WITHOUT = {"softcap": Law(cap=_uncapped), "scale": Law(score=_by_lanes)}


@hypothesis(
    "parameter-of-first-layer", "a parameter holds in a plan's first layer and in no later one",
    "layers", narrow="no",
)  # fmt: skip
def parameter_of_first_layer(right: World) -> Ways:
    shape = right.ground.case.shape
    for name, without in _WITHOUT.items():
        if getattr(shape, name) is not None:

            def law(layers: _Layers, i: int, without: Law = without) -> Law:
                return SOFTMAX if _is_first(layers, i) else without

            yield name, _so(right, Layered(law=law))


LAYERS: tuple[Hypothesis, ...] = (
    cache_of_another_layer,
    rows_written_to_another_layer,
    queries_of_another_layer,
    window_of_another_layer,
    parameter_of_first_layer,
)
