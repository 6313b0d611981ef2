"""Numbers: what is rounded to less than was declared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.shape import AttentionShape
from treeproof.diagnosis.hypothesis import Hypothesis, States, hypothesis
from treeproof.diagnosis.law import Law, Score, Weigh, dot, softmax
from treeproof.diagnosis.rounding import ROUNDED
from treeproof.diagnosis.scope import Scope
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
    "scores, weights, values or sums are kept in a lower precision than is declared",
    "attend",
    narrow="no",
)
def low_precision_accumulator(right: World) -> Iterator[tuple[str, World]]:
    for detail, law in ROUNDED.items():
        yield detail, replace(right, law=law)


_COUNTS = (2, 3, 4, 5, 6, 8, 9, 16, 17, 32, 33)
"""Numbers of rows from which on another kernel may run, or another tile of one."""


def _by_rows(detail: str, law: Law) -> States:
    """Rounded so in launches, or in requests, of many rows or of few."""

    def states(right: World) -> Iterator[tuple[str, World]]:
        everywhere = replace(right, law=law)
        for where, inside in _by_count([r.num_rows for r in right.ground.requests]):
            if all(inside):
                yield f"{detail}, {where}", everywhere
            elif any(inside):
                yield f"{detail}, {where}", replace(everywhere, scope=_requests(inside))
        yield f"{detail}, whatever the number of rows", replace(everywhere, rival=True)

    return states


def _by_count(rows: Sequence[int]) -> Iterator[tuple[str, list[bool]]]:
    """Conditions on numbers of rows, and which requests meet them."""
    most = max(rows)
    for n in _COUNTS:
        yield f"where a request has {n} rows or more", [most >= n] * len(rows)
        yield f"where no request has {n} rows", [most < n] * len(rows)
        yield f"in requests of {n} rows or more", [count >= n for count in rows]
        yield f"in requests of fewer than {n} rows", [count < n for count in rows]


def _requests(inside: Sequence[bool]) -> Scope:
    return Scope(rows=lambda row: inside[row.b])


ROUNDED_BY_ROWS: tuple[States, ...] = tuple(_by_rows(*one) for one in ROUNDED.items())

PRECISION: tuple[Hypothesis, ...] = (
    query_rounded,
    low_precision_accumulator,
)
