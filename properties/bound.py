"""How far a right kernel may be from the exact result: derived, never tuned.

With working precision u (unit roundoff), n visible keys, head dim d, weights p, scores s:

* a score is a d-term dot product, scaled and shifted: relative to Sigma|q||k| it is off by at most
  (d + 2) u_acc, so sigma = (d + 2) u_acc * max_j Sigma|q||k| * scale. Every p then carries a
  factor within [e^-sigma, e^sigma], and so does the sum it is divided by: 2 expm1(sigma).
* p rounded to its storage dtype before the second product: u_p relative; below the normal range
  the error is absolute, eta_p, relative to the largest unnormalised weight, which is 1:
  eta_p * Sigma|v| * e^(s_max - lse).
* the sum over n products, its rescalings and the division: (n + 8) u_acc.
* each merge of partial results kept in a narrower dtype: u_mid.
* the output rounded once: u_out |o|, and eta_out below the normal range.

All but the last two scale with A = Sigma p|v|. Inputs are rounded before either side sees them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import Numerics

UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half a unit in the last place of 1.0: 24, 8 and 11 significant bits, rounded to nearest."""

HALF_SMALLEST_SUBNORMAL = {"float32": 2.0**-150, "bfloat16": 2.0**-134, "float16": 2.0**-25}


def partial_rounding(dtype: str, numerics: Numerics) -> float:
    """Relative error of a mean of partial results, from what is declared about keeping them."""
    kept = dtype if numerics.partial == "input" else numerics.partial
    return UNIT_ROUNDOFF[kept] * numerics.merges


@dataclass(frozen=True)
class Bound:
    """`total` is the limit on |error|; `rest` is it without the rounding of the output.

    Shapes as the output, (rows, Hq, Dv) float64. `lse` is the limit on the log-sum-exp, (rows, Hq).
    """

    total: Tensor
    output_rounding: Tensor
    lse: Tensor

    @property
    def rest(self) -> Tensor:
        return self.total - self.output_rounding


def error_bound(
    *,
    out: Tensor,
    lse: Tensor,
    weight: Tensor,
    abs_v: Tensor,
    score_abs: Tensor,
    score_max: Tensor,
    visible: Tensor,
    head_dim: int,
    dtype: str,
    numerics: Numerics,
) -> Bound:
    """The bound for each output element from the oracle's exact quantities (all float64).

    `out`, `weight` = Sigma p|v|, `abs_v` = Sigma|v|: (rows, Hq, Dv). `lse`, `score_abs` =
    max_j Sigma|q||k| scale, `score_max`: (rows, Hq). `visible`: (rows,) keys each row reads.
    """

    def of(name: str) -> str:
        return dtype if name == "input" else name

    u_p, u_acc = UNIT_ROUNDOFF[of(numerics.p)], UNIT_ROUNDOFF[of(numerics.acc)]
    u_mid, u_out = UNIT_ROUNDOFF[of(numerics.partial)], UNIT_ROUNDOFF[dtype]
    eta_p = HALF_SMALLEST_SUBNORMAL[of(numerics.p)]
    n = visible.to(out.dtype)[:, None]
    sigma = (head_dim + 2) * u_acc * score_abs
    relative = u_p + 2 * torch.expm1(sigma) + (n + 8) * u_acc + numerics.merges * u_mid
    underflow = eta_p * torch.exp(score_max - lse)
    rounding = u_out * out.abs() + HALF_SMALLEST_SUBNORMAL[dtype]
    total = relative[..., None] * weight + underflow[..., None] * abs_v + rounding
    # A log-sum-exp carries the scores' error, the sum's, and its own rounding to float32.
    lse_limit = sigma + (n + 2) * u_acc + numerics.merges * u_mid + 4 * 2.0**-24 * (1 + lse.abs())
    return Bound(total, rounding, lse_limit)
