"""Numbers: how scores, weights and their merge are computed, where not by one plain softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.law import Law, Score, Sum, Weigh, dot, exact, is_own, softmax
from treeproof.diagnosis.merging import Merge, softmerge
from treeproof.diagnosis.world import World
from treeproof.properties.scene import TORCH_DTYPE


def _law(right: World, score: Score = dot, weigh: Weigh = softmax, plain: bool = True) -> World:
    return replace(right, law=Law(score=score, weigh=weigh, plain=plain))


def _in_parts(merge: Merge) -> Weigh:
    """Softmax over prefix keys and over tree keys, put together by `merge`."""

    def weigh(scores: Tensor, keys: Sequence[Key], row: Row) -> tuple[Tensor, Tensor]:
        own = is_own(keys, row)
        a, b = scores[:, ~own].logsumexp(-1), scores[:, own].logsumexp(-1)
        of_a, of_b, lse = merge(a, b)
        weights = torch.empty_like(scores)
        weights[:, ~own] = (scores[:, ~own] - a[:, None]).exp() * of_a[:, None]
        weights[:, own] = (scores[:, own] - b[:, None]).exp() * of_b[:, None]
        return weights, lse

    return weigh


def _merging(right: World, merge: Merge) -> World:
    """Attention in two parts, and the merge stage, both by `merge`."""
    return replace(right, law=Law(weigh=_in_parts(merge), plain=False), merge=merge)


@hypothesis(
    "base-2-lse",
    "partial results are merged by base-2 log-sum-exps that are read as natural ones",
    "attend",
    "merge",
)
def base_2_lse(right: World) -> Iterator[tuple[str, World]]:
    log2 = 1 / math.log(2)
    choices: dict[str, Merge] = {
        "": lambda a, b: softmerge(a * log2, b * log2),
        "the prefix's": lambda a, b: softmerge(a * log2, b),
        "the tree's": lambda a, b: softmerge(a, b * log2),
        "natural ones read as base 2": lambda a, b: softmerge(a / log2, b / log2),
        "the prefix's natural one read as base 2": lambda a, b: softmerge(a / log2, b),
        "the tree's natural one read as base 2": lambda a, b: softmerge(a, b / log2),
    }
    for detail, merge in choices.items():
        yield detail, _merging(right, merge)

        def true_lse(a: Tensor, b: Tensor, merge: Merge = merge) -> tuple[Tensor, Tensor, Tensor]:
            of_a, of_b, _ = merge(a, b)
            return of_a, of_b, torch.logaddexp(a, b)

        yield (
            f"{detail}{', ' * bool(detail)}the returned one right",
            _merging(right, true_lse),
        )

        def back(a: Tensor, b: Tensor, merge: Merge = merge) -> tuple[Tensor, Tensor, Tensor]:
            of_a, of_b, lse = merge(a, b)
            return of_a, of_b, lse / log2

        yield (
            f"{detail}{', ' * bool(detail)}the returned one turned back",
            _merging(right, back),
        )


@hypothesis(
    "lse-base-2-returned", "the log-sum-exp that is returned is in base 2", "attend", "merge"
)
def lse_base_2_returned(right: World) -> Iterator[tuple[str, World]]:
    for detail, factor in (("", 1 / math.log(2)), ("divided twice", math.log(2))):

        def weigh(
            logits: Tensor, keys: Sequence[Key], row: Row, factor: float = factor
        ) -> tuple[Tensor, Tensor]:
            weights, lse = softmax(logits, keys, row)
            return weights, lse * factor

        def merge(a: Tensor, b: Tensor, factor: float = factor) -> tuple[Tensor, Tensor, Tensor]:
            of_a, of_b, lse = softmerge(a, b)
            return of_a, of_b, lse * factor

        yield detail, replace(_law(right, weigh=weigh), merge=merge)


@hypothesis(
    "merge-unweighted", "partial results are averaged without their log-sum-exps", "attend", "merge"
)
def merge_unweighted(right: World) -> Iterator[tuple[str, World]]:
    def halves(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """An empty part does not count."""
        half = torch.where(a.isinf() | b.isinf(), 1.0, 0.5)
        return (
            torch.where(a.isinf(), 0.0, half), torch.where(b.isinf(), 0.0, half)
        )  # fmt: skip

    lses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "": torch.logaddexp,
        "the log-sum-exp too": lambda a, b: (a + b) / 2,
        "the larger log-sum-exp returned": torch.maximum,
        "the sum of log-sum-exps returned": lambda a, b: a + b,
        "the prefix's log-sum-exp returned": lambda a, b: a,
        "the tree's log-sum-exp returned": lambda a, b: b,
    }
    for detail, lse in lses.items():

        def averaged(
            a: Tensor, b: Tensor, lse: Callable[[Tensor, Tensor], Tensor] = lse
        ) -> tuple[Tensor, Tensor, Tensor]:
            return (*halves(a, b), lse(a, b))

        def added(
            a: Tensor, b: Tensor, lse: Callable[[Tensor, Tensor], Tensor] = lse
        ) -> tuple[Tensor, Tensor, Tensor]:
            return torch.ones_like(a), torch.ones_like(b), lse(a, b)

        yield detail, _merging(right, averaged)
        yield (
            f"added up{', ' * bool(detail)}{detail}",
            _merging(right, added),
        )


@hypothesis(
    "empty-part-counted", "a partial result over no key takes part in the merge", "attend", "merge"
)
def empty_part_counted(right: World) -> Iterator[tuple[str, World]]:
    """Its log-sum-exp is not -inf but a number, so that the other part loses weight."""

    def counted(value: float) -> Merge:
        def merge(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            a = torch.where(a.isinf(), value, a)
            b = torch.where(b.isinf(), value, b)
            return softmerge(a, b)

        return merge

    for value in (0.0, 1.0, math.log(2)):
        yield (
            f"with a log-sum-exp of {value:.3g}",
            _merging(right, counted(value)),
        )

    def halved(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, lse = softmerge(a, b)
        part = torch.where(a.isinf() | b.isinf(), 0.5, 1.0)
        return of_a * part, of_b * part, lse

    yield "at half the weight", _merging(right, halved)


@hypothesis("nan-empty-row", "where no key is left, the result is not a number", "merge")
def nan_empty_row(right: World) -> Iterator[tuple[str, World]]:
    """-inf less -inf."""

    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lse = torch.logaddexp(a, b)
        return (a - lse).exp(), (b - lse).exp(), lse

    def lse_too(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, lse = both(a, b)
        return of_a, of_b, torch.where(lse == -torch.inf, torch.nan, lse)

    def either(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, lse = both(a, b)
        empty = (a == -torch.inf) | (b == -torch.inf)
        return tuple(torch.where(empty, torch.nan, t) for t in (of_a, of_b, lse))  # type: ignore[return-value]

    def either_keeps_lse(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, _ = either(a, b)
        return of_a, of_b, torch.logaddexp(a, b)

    yield "where both parts are empty", replace(right, merge=both)
    yield "where both parts are empty, the log-sum-exp too", replace(right, merge=lse_too)
    yield "where one part is empty", replace(right, merge=either)
    yield "where one part is empty, the log-sum-exp right", replace(right, merge=either_keeps_lse)


@hypothesis("scale-missing", "scores are not multiplied by the scale", "attend")
def scale_missing(right: World) -> Iterator[tuple[str, World]]:
    yield "", _law(right, lambda q, k, shape: dot(q, k, shape) / shape.score_scale)


@hypothesis("scale-twice", "scores are multiplied by the scale twice", "attend")
def scale_twice(right: World) -> Iterator[tuple[str, World]]:
    yield "", _law(right, lambda q, k, shape: dot(q, k, shape) * shape.score_scale)


@hypothesis(
    "query-rounded", "the scaled query is rounded to a low precision before it meets the keys",
    "attend",
)  # fmt: skip
def query_rounded(right: World) -> Iterator[tuple[str, World]]:
    own = TORCH_DTYPE[right.ground.case.shape.dtype]
    log2 = 1 / math.log(2)
    for dtype in dict.fromkeys((own, torch.bfloat16, torch.float16)):
        name = str(dtype).removeprefix("torch.")
        if dtype == torch.float32:
            continue

        def scaled(
            q: Tensor, k: Tensor, shape: AttentionShape, dtype: torch.dtype = dtype
        ) -> Tensor:
            rounded = (q * shape.score_scale).to(dtype).double()
            return (k @ rounded[..., None])[..., 0]

        yield f"to {name}", _law(right, scaled)

        def in_base_2(
            q: Tensor, k: Tensor, shape: AttentionShape, dtype: torch.dtype = dtype
        ) -> Tensor:
            rounded = (q * (shape.score_scale * log2)).to(dtype).double()
            return (k @ rounded[..., None])[..., 0] / log2

        yield f"to {name}, in base 2", _law(right, in_base_2)

        def plain(
            q: Tensor, k: Tensor, shape: AttentionShape, dtype: torch.dtype = dtype
        ) -> Tensor:
            return (k @ q.to(dtype).double()[..., None])[..., 0] * shape.score_scale

        if dtype != own:
            yield f"to {name}, before it is scaled", _law(right, plain)


@hypothesis(
    "low-precision-accumulator",
    "scores, weights or sums are kept in a lower precision than is declared",
    "attend",
)
def low_precision_accumulator(right: World) -> Iterator[tuple[str, World]]:
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")

        def rounded(t: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return t.to(dtype).double()

        yield (
            f"scores in {name}",
            _law(right, lambda q, k, shape, to=rounded: to(dot(q, k, shape))),  # type: ignore[misc]
        )
        yield (
            f"unscaled scores in {name}",
            _law(
                right,
                lambda q, k, shape, to=rounded: (  # type: ignore[misc]
                    to(dot(q, k, shape) / shape.score_scale) * shape.score_scale
                ),
            ),
        )

        def in_turn(weights: Tensor, v: Tensor, to: Callable[[Tensor], Tensor] = rounded) -> Tensor:
            """Key after key into one accumulator."""
            total = torch.zeros(len(v), v.shape[2], dtype=torch.float64)
            for key in range(v.shape[1]):
                total = to(total + weights[:, key, None] * v[:, key])
            return total

        def products_too(
            weights: Tensor, v: Tensor, to: Callable[[Tensor], Tensor] = rounded
        ) -> Tensor:
            total = torch.zeros(len(v), v.shape[2], dtype=torch.float64)
            for key in range(v.shape[1]):
                total = to(total + to(weights[:, key, None] * v[:, key]))
            return total

        sums: dict[str, Sum] = {
            "the sum over keys": in_turn,
            "products and their sum over keys": products_too,
            "weights": lambda weights, v, to=rounded: exact(to(weights), v),  # type: ignore[misc]
            "unnormalised weights": lambda weights, v, to=rounded: _unnormalised(weights, v, to),  # type: ignore[misc]
            "the unnormalised sum over keys": lambda weights, v, turn=in_turn: _by_largest(  # type: ignore[misc]
                weights, v, turn
            ),
            "outputs": lambda weights, v, to=rounded: to(exact(weights, v)),  # type: ignore[misc]
            "weights and outputs": lambda weights, v, to=rounded: to(exact(to(weights), v)),  # type: ignore[misc]
        }
        for what, total in sums.items():
            yield f"{what} in {name}", replace(right, law=Law(sum=total))


def _unnormalised(weights: Tensor, v: Tensor, to: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights relative to the largest, rounded, and divided by their exact sum."""
    p = weights / weights.amax(1, keepdim=True)
    return exact(to(p), v) / p.sum(1, keepdim=True)


def _by_largest(weights: Tensor, v: Tensor, turn: Sum) -> Tensor:
    p = weights / weights.amax(1, keepdim=True)
    return turn(p, v) / p.sum(1, keepdim=True)


NUMBERS: tuple[Hypothesis, ...] = (
    base_2_lse,
    lse_base_2_returned,
    merge_unweighted,
    empty_part_counted,
    nan_empty_row,
    scale_missing,
    scale_twice,
    query_rounded,
    low_precision_accumulator,
)
