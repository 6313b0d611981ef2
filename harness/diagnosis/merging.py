"""What a merge of two partial results gives, for a chosen way of weighing them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from treeproof.contract.capabilities import UNIT_ROUNDOFF
from treeproof.diagnosis.evidence import Merged, Observation
from treeproof.properties.bound import U_32, natural
from treeproof.properties.merging import kept_dtype, parts

Merge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Natural log-sum-exps of two parts to the weight of each and the one returned, all of one shape."""


def softmerge(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As softmax over the keys of both; nothing and nothing is nothing."""
    lse = torch.logaddexp(a, b)
    of_a, of_b = ((part - lse).exp() for part in (a, b))
    none = lse == -torch.inf
    return of_a.masked_fill(none, 0.0), of_b.masked_fill(none, 0.0), lse


def merged(merge: Merge, like: Observation) -> Merged:
    """The parts that the stage is tried on, merged so."""
    given = parts(like.case, like.numerics, like.capabilities, "cpu")
    a, b = (natural(lse, like.capabilities) for lse in (given.lse_a, given.lse_b))
    of_a, of_b, lse = merge(a, b)
    # What has no weight has no part, whatever it holds.
    out_a, out_b = (
        out.double().masked_fill((share == 0)[..., None], 0.0)
        for out, share in ((given.out_a, of_a), (given.out_b, of_b))
    )
    return Merged(of_a[..., None] * out_a + of_b[..., None] * out_b, lse)


def same_merge(found: Merged, predicted: Merged, like: Observation) -> bool:
    """Equal up to the rounding of a few operations and of what is kept, NaN where NaN is."""
    kept = UNIT_ROUNDOFF[kept_dtype(like.case, like.numerics)]
    given = parts(like.case, like.numerics, like.capabilities, "cpu")
    largest = torch.maximum(given.out_a.double().abs(), given.out_b.double().abs())
    size = largest.nan_to_num(0.0) + predicted.out.abs().nan_to_num(0.0)
    lse_size = 1 + predicted.lse.abs().nan_to_num(0.0, posinf=0.0)
    # A log-sum-exp is off by 4 roundings of its size; a weight by the factor e to the power of that.
    relative = 2 * torch.expm1(8 * U_32 * lse_size) + 12 * U_32
    limit = (relative[..., None] + 2 * kept) * size
    return _close(found.out, predicted.out, limit) and _close(
        found.lse, predicted.lse, 16 * U_32 * lse_size
    )


def _close(a: Tensor, b: Tensor, limit: Tensor) -> bool:
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= limit)
    return bool(same.all())
