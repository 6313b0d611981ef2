"""Laws that round on the way from scores to outputs, once where a kernel would keep a low precision.

A rounding may tip either way where a kernel's own small errors bring a number to the middle between
two that are kept. So sums are taken of the least and of the greatest weights that a right kernel may
have; rounding keeps their order, and mostly makes them one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.law import Law, Sum, dot

Round = Callable[[Tensor], Tensor]

_KINDS = ("weights", "values", "sums")
_SETS = (
    ("weights",), ("values",), ("sums",), ("weights", "values"), ("weights", "sums"),
    ("values", "sums"), _KINDS,
)  # fmt: skip

_SETS_IN_TURN = (
    (), ("products",), ("weights",), ("weights", "values"), ("weights", "values", "products"),
)  # fmt: skip

Part = Callable[[Tensor], Tensor]
"""From which keys are the tree's to those whose products are rounded."""

_PARTS: dict[str, Part] = {
    "": torch.ones_like,
    "the prefix's": torch.logical_not,
    "the tree's": torch.Tensor.clone,
}

Unit = Callable[[Tensor, Tensor], Tensor]
"""Weights (Hq, n) and which of them are of the part, to what they are kept relative to, (Hq, 1)."""

_UNITS: dict[str, Unit] = {
    "": lambda w, part: torch.ones_like(w[:, :1]),
    "relative to the largest": lambda w, part: w.amax(1, keepdim=True),
}
_UNITS_OF_PART: dict[str, Unit] = {
    **_UNITS,
    "relative to the largest of the part": lambda w, part: w[:, part].amax(1, keepdim=True),
    "relative to the part": lambda w, part: w[:, part].sum(1, keepdim=True),
}


def _products(least: Tensor, most: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(Hq, n, Dv) each: least and greatest."""
    up = v >= 0
    low, high = least[..., None], most[..., None]
    return torch.where(up, low, high) * v, torch.where(up, high, low) * v


def _at_once(to: Round, what: tuple[str, ...], part: Part, unit: Unit) -> Sum:
    """Products of the part are added up exactly, as matrix units do; all others are left as they are."""

    def between(least: Tensor, most: Tensor, v: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        chosen = part(own)
        others = _products(least[:, ~chosen], most[:, ~chosen], v[:, ~chosen])
        rest = [p.sum(1) for p in others]
        if not bool(chosen.any()):
            return rest[0], rest[1]
        one = unit((least + most) / 2, chosen)
        low, high = (t[:, chosen] / one for t in (least, most))
        values = v[:, chosen]
        if "weights" in what:
            low, high = to(low), to(high)
        if "values" in what:
            values = to(values)
        sums = [p.sum(1) for p in _products(low, high, values)]
        if "sums" in what:
            sums = [to(s) for s in sums]
        return rest[0] + sums[0] * one, rest[1] + sums[1] * one

    return between


def _in_turn(to: Round, what: tuple[str, ...], unit: Unit) -> Sum:
    """Key after key into one accumulator."""

    def between(least: Tensor, most: Tensor, v: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        one = unit((least + most) / 2, torch.ones_like(own))
        low, high = (to(t / one) if "weights" in what else t / one for t in (least, most))
        ends = []
        for bound in _products(low, high, to(v) if "values" in what else v):
            products = to(bound) if "products" in what else bound
            total = torch.zeros_like(products[:, 0])
            for key in range(products.shape[1]):
                total = to(total + products[:, key])
            ends.append(total * one)
        return ends[0], ends[1]

    return between


def _laws() -> Iterator[tuple[str, Law]]:
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")

        def to(t: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return t.to(dtype).double()

        yield f"scores in {name}", Law(score=_scores(to, scaled=True))
        yield f"unscaled scores in {name}", Law(score=_scores(to, scaled=False))
        for unit, one in _UNITS.items():
            for what in _SETS_IN_TURN:
                kept = f"{' and '.join((*what, 'the sum key by key'))} in {name}"
                yield f"{kept}{', ' * bool(unit)}{unit}", Law(sum=_in_turn(to, what, one))
        for where, part in _PARTS.items():
            for what in _SETS:
                for unit, one in (_UNITS_OF_PART if where else _UNITS).items():
                    if what != ("values",) or not unit:
                        ways = (f"{' and '.join(what)} in {name}", where, unit)
                        yield ", ".join(filter(None, ways)), Law(sum=_at_once(to, what, part, one))


def _scores(to: Round, *, scaled: bool) -> Callable[[Tensor, Tensor, AttentionShape], Tensor]:
    def score(q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
        factor = 1.0 if scaled else shape.score_scale
        return to(dot(q, k, shape) / factor) * factor

    return score


ROUNDED: dict[str, Law] = dict(_laws())
"""By what is rounded, to what, and where."""
