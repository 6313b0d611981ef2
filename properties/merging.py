"""Merge: two partial results of disjoint sets of keys become that of all of them.

Each row of a launch is one situation. Masses that differ much, parts of no key on either side and on
both, and log-sum-exps far apart are where merges go wrong; random rows are the ordinary case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import UNIT_ROUNDOFF, Capabilities, Numerics
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.generate.data import normal
from treeproof.properties.bound import HALF_SMALLEST_SUBNORMAL, LOOSEST, U_32, natural

_OUT, _LSE = 431, 433  # address words of the random parts
_NONE = -math.inf
_GARBAGE = 1000.0
"""What lies in the output of a part without keys: any number may, and it weighs nothing."""

_SMALLEST_NORMAL = 2.0**-126
"""Of float32, in which shares are computed."""

_THREE = math.log(3)
_RANDOM = 8

_Part = tuple[float | None, float | None]
"""Output and log-sum-exp of a part; None: drawn."""

_SITUATIONS: tuple[tuple[str, _Part, _Part], ...] = (
    ("masses 3 to 1", (2.0, _THREE), (10.0, 0.0)),
    ("masses 1 to 3", (2.0, 0.0), (10.0, _THREE)),
    ("an empty first part", (_GARBAGE, _NONE), (None, None)),
    ("an empty first part of zeros", (0.0, _NONE), (None, None)),
    ("an empty second part", (None, None), (-_GARBAGE, _NONE)),
    ("an empty second part of zeros", (None, None), (0.0, _NONE)),
    ("two empty parts", (_GARBAGE, _NONE), (-_GARBAGE, _NONE)),
    ("two empty parts of zeros", (0.0, _NONE), (0.0, _NONE)),
    ("a first part 100 above the second", (None, 50.0), (None, -50.0)),
    ("a first part 100 below the second", (None, -50.0), (None, 50.0)),
    ("two parts near 100", (None, 100.0), (None, 100.5)),
    ("two parts near -100", (None, -100.5), (None, -100.0)),
    *((f"random parts {i}", (None, None), (None, None)) for i in range(_RANDOM)),
)


@dataclass(frozen=True)
class Parts:
    """Two partial results, a row a situation, as a merge is handed them.

    `out_a`, `out_b` (R, Hq, Dv) in what partial results are kept in; `lse_a`, `lse_b` (R, Hq)
    float32, in the base that the backend declares.
    """

    out_a: Tensor
    lse_a: Tensor
    out_b: Tensor
    lse_b: Tensor


def kept_dtype(case: VerifyCase, numerics: Numerics) -> str:
    return case.shape.dtype if numerics.partial == "input" else numerics.partial


def parts(case: VerifyCase, numerics: Numerics, capabilities: Capabilities, device: str) -> Parts:
    """The situations, all numbers a function of the case's seed."""
    dtype = getattr(torch, kept_dtype(case, numerics))
    unit = math.log(2) if capabilities.lse_base == "2" else 1.0
    made = []
    for side in (0, 1):
        out, lse = _drawn(case, side)
        for row, (_, *both) in enumerate(_SITUATIONS):
            given_out, given_lse = both[side]
            if given_out is not None:
                out[row] = given_out
            if given_lse is not None:
                lse[row] = given_lse
        made += [out.to(dtype).to(device), (lse / unit).float().to(device)]
    return Parts(*made)


def _drawn(case: VerifyCase, side: int) -> tuple[Tensor, Tensor]:
    shape, rows = case.shape, torch.arange(len(_SITUATIONS))
    heads, lanes = torch.arange(shape.num_q_heads), torch.arange(shape.v_head_dim)
    out = normal(case.seed, _OUT, side, rows[:, None, None], heads[:, None], lanes)
    return out, 4 * normal(case.seed, _LSE, side, rows[:, None], heads)


def judge_merge(
    given: Parts, out: Tensor, lse: Tensor, case: VerifyCase, numerics: Numerics,
    capabilities: Capabilities,
) -> list[Failure]:  # fmt: skip
    """Failures of what a merge of `given` returned, shaped as its parts."""
    wanted, wanted_lse, weight, size = _exact(given, capabilities)
    kept = kept_dtype(case, numerics)
    u_acc = UNIT_ROUNDOFF[case.shape.dtype if numerics.acc == "input" else numerics.acc]
    # A log-sum-exp is a logit here: brought to another base, and shifted, as a bias is in `bound`.
    sigma = 4 * U_32 * size
    relative = (2 * torch.expm1(sigma) + (2 + 8) * u_acc).clamp(max=LOOSEST)
    limit = relative[..., None] * weight + UNIT_ROUNDOFF[kept] * wanted.abs()
    # Shares this small are flushed to 0 or rounded to whole subnormals, as the hardware has it.
    flushed = _SMALLEST_NORMAL * torch.stack((given.out_a, given.out_b)).double().abs().sum(0)
    limit = limit + flushed + HALF_SMALLEST_SUBNORMAL[kept]
    lse_limit = sigma + 4 * u_acc + 6 * U_32 * (1 + size)
    error = (out.double() - wanted).abs()
    lse_error = (natural(lse, capabilities) - wanted_lse).abs()
    failures = []
    for row, (name, *_) in enumerate(_SITUATIONS):
        if bool(wanted_lse[row].isinf().all()):
            failures += _judge_empty(name, out[row], lse[row], capabilities.empty_rows)
            continue
        failures += _judge_row(
            "wrong-merge",
            f"{name}: the merged output",
            error[row],
            limit[row],
            out[row],
            wanted[row],
        )
        failures += _judge_row(
            "wrong-merged-lse", f"{name}: the merged log-sum-exp (natural)",
            lse_error[row], lse_limit[row], natural(lse[row], capabilities), wanted_lse[row],
        )  # fmt: skip
    return failures


def _exact(given: Parts, capabilities: Capabilities) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, natural log-sum-exp, sum of weight times |output|, and largest finite |lse|."""
    lse_a, lse_b = natural(given.lse_a, capabilities), natural(given.lse_b, capabilities)
    both = torch.stack((lse_a, lse_b))
    lse = torch.logaddexp(lse_a, lse_b)
    shares = (both - lse).exp().nan_to_num(0.0)  # -inf less -inf: nothing has a share of nothing
    outs = torch.stack((given.out_a, given.out_b)).double()
    size = both.abs().nan_to_num(0.0, posinf=0.0).amax(0)
    out, weight = ((shares[..., None] * part).sum(0) for part in (outs, outs.abs()))
    return out, lse, weight, size


def _judge_row(
    kind: str, what: str, error: Tensor, limit: Tensor, found: Tensor, wanted: Tensor
) -> list[Failure]:
    ratio = (error / limit).nan_to_num(torch.inf)  # a NaN is as wrong as can be
    at = int(ratio.argmax())
    if float(ratio.flatten()[at]) <= 1:
        return []
    value, true = (f"{float(t.flatten()[at]):.6g}" for t in (found, wanted))
    return [_failure(kind, f"{what} is {value}, expected {true}", true, value)]


def _judge_empty(name: str, out: Tensor, lse: Tensor, policy: str) -> list[Failure]:
    """No key at all: output 0 and log-sum-exp -inf, NaN, or anything, as it is declared."""
    right: dict[str, Callable[[], bool]] = {
        "zero": lambda: bool((out == 0).all()) and bool((lse == _NONE).all()),
        "nan": lambda: bool(out.isnan().all()) and bool((lse.isnan() | (lse == _NONE)).all()),
        "undefined": lambda: True,
    }
    if right[policy]():
        return []
    wanted = {"zero": "0 and -inf", "nan": "NaN and -inf or NaN"}[policy]
    found = f"{float(out.flatten()[0]):.6g} and {float(lse.flatten()[0]):.6g}"
    message = f"{name}: output and log-sum-exp are {found}, expected {wanted} as declared"
    return [_failure("merged-nothing", message, wanted, found)]


def _failure(kind: str, message: str, expected: str, actual: str) -> Failure:
    return Failure(
        identity="output", kind=kind, evidence="measured", stage="merge",
        message=message, expected=expected, actual=actual,
    )  # fmt: skip
