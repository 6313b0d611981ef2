"""How far a right kernel may be from the exact result: derived, never tuned.

With unit roundoffs u, n terms of the softmax (the visible keys, and a sink if there is one), head
dim d, weights p, values v, A = Sigma p|v|, S = max over the keys of scale * Sigma|q||k|:

  err <= [u_p + u_v + 2 expm1(sigma) + (n + 8) u_acc + m u_mid] A
         + eta_p Sigma|v| e^(s_max - lse) + u_out |o| + eta_out
  sigma = ((d + 2) u_acc + 2 u_mul) S + cap u_tanh + 4 u_32 max|bias|

* sigma is the error of a logit. A dot product of d terms is off by d u_acc of Sigma|q||k|; the scale
  and the shift by the largest logit are one rounding each. Each factor, q and K, rounded to what the
  first product takes: 2 u_mul. A softcap multiplies a tanh by cap and does not enlarge what came
  before, its slope being at most 1: cap u_tanh. A bias (a sink's logit counts as one) is multiplied,
  added and shifted, where both it and the largest logit may be as large: four roundings of max|bias|.
* every p then carries a factor within [e^-sigma, e^sigma], and so does the sum it is divided by: a
  value on one key of little weight moves by both, 2 expm1(sigma).
* p rounded to what the second product takes: u_p relative; below the normal range the error is
  absolute, eta_p, relative to the largest unnormalised weight, which is 1, so eta_p e^(s_max - lse)
  of every |v|. v rounded to what the second product takes: u_v, where a dequantised value is or a
  factor is narrowed.
* the sum over n terms is off by n u_acc of it. Eight further roundings: the exponential (two), its
  sum's last rescaling and the sum's own, the product's rescaling, the reciprocal, the product with
  it, and the exponential of the rescaling.
* each of m merges rounds its partial results to what they are kept in: u_mid.
* the output rounded once: u_out |o|, and eta_out below the normal range.

Inputs, and the codes of a quantised cache, are rounded before either side sees them.

What is declared is believed up to a point: beyond `LOOSEST` of A nothing is told apart, and a bound
that would be looser stops there. `Numerics` refuses merges that would use up half of that alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import UNIT_ROUNDOFF, Capabilities, Numerics
from treeproof.contract.case import AttentionShape

HALF_SMALLEST_SUBNORMAL = {"float32": 2.0**-150, "bfloat16": 2.0**-134, "float16": 2.0**-25}
"""Nothing above 0 is rounded further than this; where subnormals are flushed, see `eta`."""

LOOSEST = 0.25
"""Of A, or of 1 in a log-sum-exp: one key in four, wrong altogether, would be no further off."""

U_32 = UNIT_ROUNDOFF["float32"]

U_TANH = {
    # tanhf is within 2 units in the last place, 4 roundings; the quotient's rounding moves it by less
    # than half of one, the product with cap by one: 6 at most.
    "exact": 6 * U_32,
    # tanh.approx.f32: at most 2**-11 off (PTX ISA, "tanh"), and the same quotient and product.
    "approx": 2.0**-11 + 2 * U_32,
}


def factor_rounding(kept: str, dtype: str, *, exact: bool) -> float:
    """Relative error of a factor that is rounded to `kept`; `exact`: it comes in the case's dtype.

    A dtype that holds every number of the case's dtype rounds nothing that comes in it.
    """
    target = dtype if kept == "input" else kept
    if exact and UNIT_ROUNDOFF[target] <= UNIT_ROUNDOFF[dtype]:
        return 0.0
    return UNIT_ROUNDOFF[target]


def partial_rounding(dtype: str, numerics: Numerics) -> float:
    """Relative error of a mean of partial results, from what is declared about keeping them."""
    kept = dtype if numerics.partial == "input" else numerics.partial
    return UNIT_ROUNDOFF[kept] * numerics.merges


@dataclass(frozen=True)
class Bound:
    """`total` is the limit on |error|; `rest` is it without the rounding of the output.

    Shapes as the output, (rows, Hq, Dv) float64. `lse` is the limit on the log-sum-exp, (rows, Hq),
    in natural log.
    """

    total: Tensor
    output_rounding: Tensor
    lse: Tensor

    @property
    def rest(self) -> Tensor:
        return self.total - self.output_rounding


@dataclass(frozen=True)
class Roundings:
    """The unit roundoffs of a kernel on the cases of one shape."""

    mul: float
    p: float
    v: float
    acc: float
    merged: float
    tanh: float
    eta_p: float
    out: float
    eta_out: float

    @classmethod
    def of(cls, shape: AttentionShape, numerics: Numerics, capabilities: Capabilities) -> Roundings:
        dtype, unquantised = shape.dtype, shape.kv_dtype is None
        p = dtype if numerics.p == "input" else numerics.p
        mul = factor_rounding(numerics.mul, dtype, exact=unquantised)
        v = factor_rounding(numerics.v, dtype, exact=unquantised)
        if capabilities.tree_kv == "operand" and not unquantised:
            # The rows' own K and V are read as they were handed over: rounded to the case's dtype.
            mul, v = max(mul, UNIT_ROUNDOFF[dtype]), max(v, UNIT_ROUNDOFF[dtype])
        return cls(
            mul=mul,
            p=UNIT_ROUNDOFF[p],
            v=v,
            acc=UNIT_ROUNDOFF[dtype if numerics.acc == "input" else numerics.acc],
            merged=partial_rounding(dtype, numerics),
            tanh=0.0 if shape.softcap is None else shape.softcap * U_TANH[numerics.tanh],
            eta_p=HALF_SMALLEST_SUBNORMAL["float32" if p == "tf32" else p],
            out=UNIT_ROUNDOFF[dtype],
            eta_out=HALF_SMALLEST_SUBNORMAL[dtype],
        )


def error_bound(
    *,
    out: Tensor,
    lse: Tensor,
    lse_sink: Tensor,
    weight: Tensor,
    abs_v: Tensor,
    score_abs: Tensor,
    score_max: Tensor,
    bias_abs: Tensor,
    visible: Tensor,
    shape: AttentionShape,
    numerics: Numerics,
    capabilities: Capabilities,
) -> Bound:
    """The bound for each output element from the oracle's exact quantities, named as in `PathResult`.

    All float64: `out`, `weight` = Sigma p|v| and `abs_v` = Sigma|v| (rows, Hq, Dv), `visible` (rows,),
    all others (rows, Hq).
    """
    u = Roundings.of(shape, numerics, capabilities)
    n = (visible.to(out.dtype) + shape.sinks)[:, None]
    sigma = ((shape.head_dim + 2) * u.acc + 2 * u.mul) * score_abs + u.tanh + 4 * U_32 * bias_abs
    relative = u.p + u.v + 2 * torch.expm1(sigma) + (n + 8) * u.acc + u.merged
    underflow = u.eta_p * torch.exp(score_max - lse_sink)
    rounding = u.out * out.abs() + u.eta_out
    relative = relative.clamp(max=LOOSEST)
    total = relative[..., None] * weight + underflow[..., None] * abs_v + rounding
    size = torch.maximum(lse.abs(), lse_sink.abs())
    return Bound(total, rounding, _lse_limit(sigma, n, size, u, capabilities))


def _lse_limit(
    sigma: Tensor, n: Tensor, size: Tensor, u: Roundings, capabilities: Capabilities
) -> Tensor:
    """A log-sum-exp of this size carries the scores' error, the sum's, and its rounding to float32.

    In base 2 it is one product away from the natural one, which its reader undoes: two roundings.
    """
    own = 4 if capabilities.lse_base == "e" else 6
    declared = sigma + (n + 2) * u.acc + u.merged
    return declared.clamp(max=LOOSEST) + own * U_32 * (1 + size)


def natural(lse: Tensor, capabilities: Capabilities) -> Tensor:
    """A returned log-sum-exp in natural log, float64."""
    return lse.double() * (math.log(2) if capabilities.lse_base == "2" else 1.0)
