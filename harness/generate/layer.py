"""What the layer of a case holds beside its activations: sinks, ALiBi slopes, scales of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeproof.contract.inputs import LayerParameters
from treeproof.generate.data import normal

if TYPE_CHECKING:
    from torch import Tensor

    from treeproof.contract.case import VerifyCase

# Address words; those of `data` begin at 1, of the ledger at 101, of `pool` at 201.
_SINKS, _K_SCALE, _V_SCALE = 301, 302, 303

_CODES = {"float8_e4m3fn": 64.0, "int8": 100.0}
"""Code of the largest number that is drawn. 100 of int8's 127: a value rounded to 8 significant bits
is then still nearest to its own code, half a code being more than the 0.4 that rounding can move it."""

_LARGEST = 3.5
"""Above every number that `normal` gives."""

_NO_SINK = -1e4
"""The weight of a sink this low is 0 in float32 beside any score of a probe; float16 can hold it."""


def layer_parameters(case: VerifyCase, device: str = "cpu") -> LayerParameters:
    """Sinks about as large as log-sum-exps are, and scales that differ from head to head."""
    import torch

    shape = case.shape
    query_heads, heads = torch.arange(shape.num_q_heads), torch.arange(shape.num_kv_heads)
    sinks = slopes = k_scale = v_scale = None
    if shape.sinks:
        # Rounded to eight significant bits, which any dtype that a kernel keeps them in can hold.
        drawn = 2 + 1.5 * normal(case.seed, _SINKS, query_heads)
        sinks = drawn.bfloat16().float().to(device)
    if shape.alibi:
        slopes = torch.tensor(alibi_slopes(shape.num_q_heads), dtype=torch.float32, device=device)
    if shape.kv_dtype is not None:
        unit = _LARGEST / _CODES[shape.kv_dtype]
        k_scale, v_scale = (
            # Within a factor of 2, so that a neighbour's scale shows and no code leaves its range.
            (unit * (1.5 + normal(case.seed, word, heads) / 7)).float().to(device)
            for word in (_K_SCALE, _V_SCALE)
        )
    return LayerParameters(sinks, slopes, k_scale, v_scale)


def neutral(layer: LayerParameters) -> LayerParameters:
    """Parameters that change nothing: no sink, no slope, codes that are the values themselves."""
    return LayerParameters(
        sinks=None if layer.sinks is None else _filled(layer.sinks, _NO_SINK),
        alibi_slopes=None if layer.alibi_slopes is None else _filled(layer.alibi_slopes, 0.0),
        k_scale=None if layer.k_scale is None else _filled(layer.k_scale, 1.0),
        v_scale=None if layer.v_scale is None else _filled(layer.v_scale, 1.0),
    )


def _filled(like: Tensor, value: float) -> Tensor:
    return like.new_full(like.shape, value)


def alibi_slopes(heads: int) -> list[float]:
    """The geometric series of Press, Smith, Lewis (ALiBi, 2022), one slope a query head.

    2 ** (-8 i / heads), i from 1; where `heads` is no power of two, the series of the next lower
    power and then every other one of the series of the next higher.
    """
    lower = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / lower) for i in range(1, lower + 1)]
    between = [2.0 ** (-8 * i / (2 * lower)) for i in range(1, 2 * lower, 2)]
    return slopes + between[: heads - lower]
