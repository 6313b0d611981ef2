"""Numbers: how scores, weights and their merge are computed, where not by one plain softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.law import Law, Score, Weigh, dot, is_own, softmax
from treeproof.diagnosis.merging import Merge, softmerge
from treeproof.diagnosis.world import World


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


Returned = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-sum-exps of the parts, and the one that was merged, to the one that is returned."""


def _from_the_top(a: Tensor, b: Tensor, lse: Tensor) -> Tensor:
    """The larger one, and the natural logarithm of the sum of powers of 2 relative to it."""
    top = torch.maximum(a, b)
    shift = top.masked_fill(top == -torch.inf, 0.0)
    return top + ((a - shift).exp2() + (b - shift).exp2()).log()


_RETURNED: dict[str, Returned] = {
    "the returned one right": lambda a, b, lse: torch.logaddexp(a, b),
    "the returned one turned back": lambda a, b, lse: lse * math.log(2),
    "a natural logarithm added to the larger one": _from_the_top,
}


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
        for returned, lse_of in _RETURNED.items():

            def other(
                a: Tensor, b: Tensor, merge: Merge = merge, lse_of: Returned = lse_of
            ) -> tuple[Tensor, Tensor, Tensor]:
                of_a, of_b, lse = merge(a, b)
                return of_a, of_b, lse_of(a, b, lse)

            yield (
                f"{detail}{', ' * bool(detail)}{returned}",
                _merging(right, other),
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
    "merge-unweighted",
    "partial results are not weighed by their own log-sum-exps",
    "attend",
    "merge",
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

        def halved(
            a: Tensor, b: Tensor, lse: Callable[[Tensor, Tensor], Tensor] = lse
        ) -> tuple[Tensor, Tensor, Tensor]:
            return torch.full_like(a, 0.5), torch.full_like(b, 0.5), lse(a, b)

        def exchanged(
            a: Tensor, b: Tensor, lse: Callable[[Tensor, Tensor], Tensor] = lse
        ) -> tuple[Tensor, Tensor, Tensor]:
            of_a, of_b, _ = softmerge(a, b)
            return of_b, of_a, lse(a, b)

        def added(
            a: Tensor, b: Tensor, lse: Callable[[Tensor, Tensor], Tensor] = lse
        ) -> tuple[Tensor, Tensor, Tensor]:
            return torch.ones_like(a), torch.ones_like(b), lse(a, b)

        also = f"{', ' * bool(detail)}{detail}"
        yield detail, _merging(right, averaged)
        yield f"empty parts too{also}", _merging(right, halved)
        yield f"by each other's{also}", _merging(right, exchanged)
        yield (
            f"added up{also}",
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

    # What is infinite, or is taken off itself, leaves no number.
    def nothing(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        empty = (a == -torch.inf) | (b == -torch.inf)
        of_a, of_b, lse = (torch.where(empty, torch.nan, t) for t in softmerge(a, b))
        return of_a, of_b, lse

    def nothing_but_lse(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, _ = nothing(a, b)
        return of_a, of_b, torch.logaddexp(a, b)

    yield "and leaves no number", replace(right, merge=nothing)
    yield "and leaves no number, the log-sum-exp right", replace(right, merge=nothing_but_lse)


@hypothesis("nan-empty-row", "where no key is left, the result is not a number", "merge")
def nan_empty_row(right: World) -> Iterator[tuple[str, World]]:
    """-inf less -inf."""

    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lse = torch.logaddexp(a, b)
        return (a - lse).exp(), (b - lse).exp(), lse

    def lse_too(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, lse = both(a, b)
        return of_a, of_b, torch.where(lse == -torch.inf, torch.nan, lse)

    yield "where both parts are empty", replace(right, merge=both)
    yield "where both parts are empty, the log-sum-exp too", replace(right, merge=lse_too)


@hypothesis("scale-missing", "scores are not multiplied by the scale", "attend")
def scale_missing(right: World) -> Iterator[tuple[str, World]]:
    yield "", _law(right, lambda q, k, shape: dot(q, k, shape) / shape.score_scale)


@hypothesis("scale-twice", "scores are multiplied by the scale twice", "attend")
def scale_twice(right: World) -> Iterator[tuple[str, World]]:
    yield "", _law(right, lambda q, k, shape: dot(q, k, shape) * shape.score_scale)


NUMBERS: tuple[Hypothesis, ...] = (
    base_2_lse,
    lse_base_2_returned,
    merge_unweighted,
    empty_part_counted,
    nan_empty_row,
    scale_missing,
    scale_twice,
)
