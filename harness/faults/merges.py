"""Faults of merging: what two partial results weigh, and what an empty one counts for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from treeproof.faults.attending import edit, fault_of_attend, kernel
from treeproof.faults.fault import Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request

Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _merging(around: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Plant]:
    """`around(right, out_a, lse_a, out_b, lse_b)`: what the merge does instead."""
    return {"cascade": lambda backend: wrapped(backend, "merge", around)}


def _empty_as(value: float, right: Merge, *parts: Tensor) -> tuple[Tensor, Tensor]:
    out_a, lse_a, out_b, lse_b = parts
    return right(out_a, _filled(lse_a, value), out_b, _filled(lse_b, value))


def _filled(lse: Tensor, value: float) -> Tensor:
    return lse.masked_fill(lse == -math.inf, value)


def _first_in_base_2(right: Merge, *parts: Tensor) -> tuple[Tensor, Tensor]:
    out_a, lse_a, out_b, lse_b = parts
    return right(out_a, lse_a / math.log(2), out_b, lse_b)


def _nothing(parts: Sequence[Tensor]) -> Tensor:
    """(...) where neither part has a key."""
    return (parts[1] == -math.inf) & (parts[3] == -math.inf)


def _finite_when_empty(right: Merge, *parts: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = right(*parts)
    return out, lse.masked_fill(_nothing(parts), -1e4)


def _kept_when_empty(right: Merge, *parts: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = right(*parts)
    return torch.where(_nothing(parts).unsqueeze(-1), parts[0].to(out.dtype), out), lse


_PREFIX_LSE = "values.transpose(1, 2), _log_sum(scores, weights)"
_SUFFIX_LSE = "lse[own] = _log_sum(scores, weights)"
_WEIGHED = "out = out_a * (z_a / share).unsqueeze(-1) + out_b * (z_b / share).unsqueeze(-1)"

_ABOVE = "above = tl.load(part_lse + part * lines + line)"
_WEIGHT = "weight = tl.exp2(above) if BASE_2 else tl.exp(above)"


def _of_part(n: int) -> Plant:
    """The log-sum-exp of part n, from natural to base 2."""
    factor = f"tl.where(part == {n}, 1.4426950408889634, 1.0)"
    return kernel("merging", (_ABOVE, f"{_ABOVE} * {factor}"))


FAULTS = (
    fault_of_attend(
        "base-2-lse.prefix",
        "the prefix pass returns its log-sum-exp in base 2, which the merge takes for natural",
        {
            "cascade": edit((_PREFIX_LSE, f"{_PREFIX_LSE} * 1.4426950408889634")),
            "triton-cascade": _of_part(0),
        },
        cause="base-2-lse",
        smallest=case(request(prefix=1)),
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "base-2-lse.suffix",
        "the suffix pass returns its log-sum-exp in base 2, which the merge takes for natural",
        {
            "cascade": edit((_SUFFIX_LSE, f"{_SUFFIX_LSE} * 1.4426950408889634")),
            "triton-cascade": _of_part(1),
        },
        cause="base-2-lse",
        smallest=case(request()),
        sources=("B039", "vllm-project/vllm#52796"),
        identity="output",
    ),
    fault_of_attend(
        "base-2-lse.weights",
        "the merge raises 2, not e, to the power of natural logarithms",
        {
            "cascade": edit(
                (
                    "z_a, z_b = (lse_a - top).exp(), (lse_b - top).exp()",
                    "z_a, z_b = (lse_a - top).exp2(), (lse_b - top).exp2()",
                )
            ),
            "triton-cascade": kernel("merging", (_WEIGHT, "weight = tl.exp2(above)")),
        },
        cause="base-2-lse",
        smallest=case(request()),
        larger="one node shows it to the probe merge, which has parts of its own whatever the case; a "
        "launch must have two parts that each hold a key",
        sources=("B039", "vllm-project/vllm#47079"),
        identity="output",
    ),
    fault_of_attend(
        "merge-unweighted.average",
        "two partial results are averaged",
        {
            "cascade": edit((_WEIGHED, "out = (out_a + out_b) / 2")),
            "triton-cascade": kernel("merging", (_WEIGHT, "weight = tl.exp2(level * 0.0)")),
        },
        cause="merge-unweighted",
        smallest=case(request()),
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "merge-unweighted.exchanged",
        "each partial result gets the weight of the other",
        {
            "cascade": edit(
                (
                    _WEIGHED,
                    f"z_a, z_b = z_b, z_a\n    {_WEIGHED}",
                )
            ),
            "triton-cascade": kernel(
                "merging",
                ("at = parts + (part * lines", "at = parts + ((PARTS - 1 - part) * lines"),
            ),
        },
        cause="merge-unweighted",
        smallest=case(request()),
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "empty-part-counted",
        "an empty prefix has log-sum-exp 0, and so weighs as much as one key",
        {
            "cascade": edit(
                (
                    'lse = q.new_full(q.shape[:3], float("-inf"))',
                    "lse = q.new_zeros(q.shape[:3])",
                )
            ),
            "triton-cascade": kernel(
                "softmax", ('top + tl.log(some), float("-inf"))', "top + tl.log(some), 0.0)")
            ),
        },
        cause="empty-part-counted",
        smallest=case(request()),
        sources=("B040",),
        identity="output",
    ),
    fault_of_attend(
        "merge-of-one-base-2",
        "the first part comes from a kernel whose log-sum-exp is in base 2",
        _merging(_first_in_base_2),
        cause="base-2-lse",
        smallest=case(request()),
        sources=("B039", "sgl-project/sglang#40903"),
        identity="output",
        stage="merge",
    ),
    fault_of_attend(
        "merge-with-empty.as-one-key",
        "a part without keys comes with log-sum-exp 0",
        _merging(partial(_empty_as, 0.0)),
        cause="empty-part-counted",
        smallest=case(request()),
        sources=("B040",),
        identity="output",
        stage="merge",
    ),
    fault_of_attend(
        "merge-with-empty.infinite",
        "a part without keys comes with log-sum-exp plus infinity",
        _merging(partial(_empty_as, math.inf)),
        cause="empty-part-counted",
        smallest=case(request()),
        sources=("B040", "flashinfer-ai/flashinfer#5262"),
        identity="output",
        stage="merge",
    ),
    fault_of_attend(
        "merge-of-nothing.nan",
        "minus infinity is taken off minus infinity where neither part has a key",
        {
            "cascade": edit(('    top = top.masked_fill(top == float("-inf"), 0.0)\n', "")),
            "triton-cascade": kernel(
                "merging", ('level = tl.where(top == float("-inf"), 0.0, top)', "level = top")
            ),
        },
        cause="nan-empty-row",
        smallest=case(request()),
        sources=("B040", "vllm-project/vllm#39148"),
        identity="output",
        stage="merge",
    ),
    fault_of_attend(
        "merge-of-nothing.finite",
        "a row without keys is left with the number that stands for minus infinity",
        _merging(_finite_when_empty),
        cause="unknown",
        smallest=case(request()),
        sources=("B038", "flashinfer-ai/flashinfer#4452"),
        identity="output",
        stage="merge",
    ),
    fault_of_attend(
        "merge-of-nothing.old-output",
        "a row without keys keeps the output that lay there before",
        _merging(_kept_when_empty),
        cause="unwritten-output",
        smallest=case(request()),
        sources=("B038", "flashinfer-ai/flashinfer#1533"),
        identity="output",
        stage="merge",
    ),
)
