"""Numbers: what is rounded to less than was declared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.law import Law, Score, Sum, Weigh, dot, exact, softmax
from treeproof.diagnosis.world import World
from treeproof.properties.scene import TORCH_DTYPE


def _law(right: World, score: Score = dot, weigh: Weigh = softmax, plain: bool = True) -> World:
    return replace(right, law=Law(score=score, weigh=weigh, plain=plain))


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


PRECISION: tuple[Hypothesis, ...] = (
    query_rounded,
    low_precision_accumulator,
)
