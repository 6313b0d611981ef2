"""The error bound: every constant is needed.

Each test is a right kernel on numbers chosen against it: one kind of rounding, as it happens in
hardware, as large as it can be. Its error lies inside the bound, and outside of the bound with that
one constant left out (or halved, where it says so).
"""

import math

import numpy as np
import pytest
import torch
from bound_emulation import (
    Row,
    cut_to_tf32,
    dot_in_order,
    exactly,
    lanes,
    scored,
    to,
)

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape
from treeproof.properties.bound import LOOSEST, Roundings, error_bound

f32 = np.float32


def needs(row, output, **smaller):
    """The error is inside the bound; with these constants changed it would not be."""
    error, limit = row.error(output), row.limit()
    assert limit == pytest.approx(row.written_out(), rel=1e-9)
    assert error <= limit
    for name, value in smaller.items():
        assert error > row.written_out(**{name: value}), name


def test_weights_are_rounded_to_what_the_second_product_takes():
    half_way = 0.5 * (1 + 2.0**-8)  # between two numbers of bfloat16
    row = scored([math.log(half_way), 0.0], [1.0, 0.0]).with_numerics(p="bfloat16")
    p = np.exp(to("float32", row.keys[:, 0]))
    output = float(to("bfloat16", p * 0.9999999)[0]) / p.sum()
    needs(row, output, u_p=2.0**-9)


def test_a_weight_below_the_normal_range_is_lost_whole():
    count = 32
    faint = math.log(0.999 * 2.0**-25)
    # The score itself must be a number of float16: nearly all of 2 ** -25 is left.
    row = scored([float(to("float16", faint - 0.01))] * count + [0.0], [1.0] * count + [0.0],
                 dtype="float16").with_numerics(p="float16")  # fmt: skip
    p = to("float16", np.exp(row.keys[:, 0]))
    assert p[:count].max() == 0.0
    needs(row, 0.0, eta_p=2.0**-26)


def test_values_are_rounded_to_what_the_second_product_takes():
    row = scored([0.0], [1 + 2.0**-8]).with_numerics(v="bfloat16")
    needs(row, to("bfloat16", row.values)[0], u_v=2.0**-9)


def test_both_factors_of_the_first_product_are_cut_to_tf32():
    almost = 1 + 2.0**-10 - 2.0**-23
    keys = np.stack([lanes(-2 * almost), lanes(2 * almost)])
    row = Row(keys, np.array([1.0, 0.0]), lanes(almost)).with_numerics(mul="tf32")
    score = cut_to_tf32(row.query)[0] * cut_to_tf32(row.keys)[:, 0]
    needs(row, exactly(np.exp(score - score.max()), row.values), u_mul=2.0**-11)


def stagnating(big, tiny):
    """(8,) whose exact sum is `big` and seven times `tiny`, and whose sum in order is `big`."""
    return np.array([big, *[tiny] * 7])


def dots(row):
    """Scores of a kernel in float32: dot products in order, scaled, shifted by the largest."""
    found = [f32(dot_in_order(row.query, key) * f32(row.scale)) for key in row.keys]
    return np.array([float(f32(score - max(found))) for score in found])


def test_a_dot_product_may_lose_a_rounding_a_lane_and_two_more():
    # Found by search: scaling and shifting round the same way as the sums do. The key that has the
    # value comes out too low and the other too high, so both move the output: twice.
    first, second = float(f32(32.185947)), float(f32(32.434605))
    tiny = float(f32(0.999 * 2.0**-19))
    keys = np.stack([stagnating(-first, tiny), stagnating(second, -tiny)])
    row = Row(keys, np.array([1.0, 0.0]), np.ones(8), scale=float(f32(0.99479973)))
    output = exactly(np.exp(dots(row)), row.values)
    needs(row, output, scaled_and_shifted=0, d=4, twice=1)


def test_a_sum_may_lose_a_rounding_a_term():
    n = 64
    values = [1.0] + [0.999 * 2.0**-24] * (n - 1)
    row = scored([0.0] * n, [float(f32(v)) for v in values])
    total = f32(0)
    for value in row.values:
        total = f32(total + f32(value))
    assert total == 1.0
    needs(row, float(total) / n, n=n // 2)


def test_eight_roundings_come_on_top_of_the_sum():
    """Exponential, product, sum, mass, reciprocal and product with it, all in bfloat16."""
    worst, found = 0.0, None
    for distance_bias in np.linspace(0.2, 1.2, 101):
        slope = float(f32(distance_bias))
        for value in (1.0, 1.0078125, 1.2421875, 1.4921875, 1.9921875):
            row = Row(
                np.zeros((2, 8)), np.array([value, 1.0]), np.zeros(8), slope=slope
            ).with_numerics(acc="bfloat16")
            p = to("bfloat16", np.exp(-slope))
            mass = to("bfloat16", p + 1)
            total = to("bfloat16", to("bfloat16", p * value) + 1)
            output = to("bfloat16", total * to("bfloat16", 1 / mass))
            error = row.error(output) / row.written_out(eight=0)
            if error > worst:
                worst, found = error, (row, output)
    needs(*found, eight=0)


def test_each_merge_rounds_what_it_keeps():
    # Two keys of equal weight whose mean is half way between numbers of bfloat16, and a third of a
    # sixteenth that brings the rounded mean half way again.
    third = 1 + 0.99 * 2.0**-4
    row = scored(
        [math.log(15 / 32), math.log(15 / 32), math.log(1 / 16)],
        [1 + 2.0**-8, 1 + 2.0**-8, float(f32(third))],
    ).with_numerics(partial="bfloat16", merges=2)
    once = to("bfloat16", 0.5 * row.values[0] + 0.5 * row.values[1])
    twice = to("bfloat16", once * 15 / 16 + row.values[2] / 16)
    assert float(once) == float(twice) == 1.0
    needs(row, twice, merges=1, u_mid=2.0**-9)


def test_the_output_is_rounded_once():
    row = scored([0.0, 0.0], [1.0, 1 + 2.0**-7], dtype="bfloat16")
    needs(row, to("bfloat16", row.values.mean()), u_out=2.0**-9)


def test_an_output_below_the_normal_range_is_rounded_to_a_multiple_of_the_smallest():
    row = scored([0.0, 0.0], [2.0**-24, 0.0], dtype="float16")
    assert to("float16", row.values.mean()) == 0.0
    needs(row, 0.0, eta_out=2.0**-26)


def test_a_softcap_by_the_hardwares_tanh_is_off_by_what_that_is():
    cap = 30.0
    row = scored([-60.0, 60.0], [1.0, 0.0], softcap=cap).with_numerics(tanh="approx")
    tanh = np.tanh(row.keys[:, 0] / cap) * (1 + 0.99 * 2.0**-11)
    needs(row, exactly(np.exp(cap * (tanh - tanh.max())), row.values), u_tanh=2.0**-12)


def test_a_softcap_by_a_sigmoid_is_off_by_roundings_of_the_cap_and_not_of_the_score():
    """2 sigmoid(2 x) - 1, as kernels have it that know no tanh: near 0 it is off by roundings of 1."""
    cap, worst, found = 50.0, 0.0, None
    for score in np.linspace(0.05, 0.3, 401):
        row = scored([-float(f32(score)), float(f32(score))], [1.0, 0.0], softcap=cap)
        x = (row.keys[:, 0].astype(f32) / f32(cap)).astype(f32)
        sigmoid = f32(1) / (f32(1) + np.exp(-2 * x).astype(f32)).astype(f32)
        capped = (f32(cap) * (f32(2) * sigmoid - f32(1))).astype(f32).astype(np.float64)
        output = exactly(np.exp(capped - capped.max()), row.values)
        if row.error(output) > worst:
            worst, found = row.error(output), (row, output)
    needs(*found, u_tanh=0.0)


def test_a_bias_is_rounded_like_a_score_of_its_size():
    worst, found = 0.0, None
    for slope in np.linspace(18.0, 21.0, 61):
        n = 4
        row = Row(
            np.zeros((n, 8)),
            np.array([1.0] + [0.0] * (n - 1)),
            np.zeros(8),
            slope=float(f32(slope)),
        )
        # By positions, as a kernel adds it that knows no distances: two products and a difference.
        position = np.arange(n, dtype=f32)
        bias = (f32(row.slope) * position).astype(f32)
        shifted = (bias - bias[-1]).astype(f32).astype(np.float64)
        output = exactly(np.exp(shifted), row.values)
        error = row.error(output) / row.written_out(biases=0)
        if error > worst:
            worst, found = error, (row, output)
    needs(*found, biases=0)


SHAPE = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8}


def limits(n=1000, dtype="bfloat16", numerics=None, capabilities=None, **shape):
    """The bound where all is 1: |out|, Sigma p|v|, and the scores' size, with n keys."""
    one, wide = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, 8, dtype=torch.float64)
    return error_bound(
        out=wide, lse=one, lse_sink=one, weight=wide, abs_v=n * wide, score_abs=one,
        score_max=0 * one, bias_abs=0 * one, visible=torch.tensor([n]),
        shape=AttentionShape(dtype=dtype, **SHAPE, **shape),
        numerics=numerics or Numerics(p="float32"), capabilities=capabilities or Capabilities(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "absurd",
    [
        Numerics(acc="bfloat16"),
        Numerics(acc="bfloat16", partial="bfloat16", merges=32, mul="bfloat16", v="bfloat16"),
    ],
)
def test_no_declaration_makes_the_bound_looser_than_a_quarter(absurd):
    honest, loose = limits(), limits(numerics=absurd)
    assert float(honest.total.max()) < 0.01
    # A thousand roundings to eight bits would be four times everything there is.
    assert float(loose.rest.max()) == pytest.approx(LOOSEST, rel=1e-6)
    assert float(loose.lse.max()) <= LOOSEST + 6 * 2.0**-24 * 2


@pytest.mark.parametrize(
    ("said", "most"), [({"partial": "bfloat16"}, 32), ({"partial": "input"}, 32)]
)
def test_merges_that_would_lose_everything_are_refused(said, most):
    assert Numerics(merges=most, **said).merges == most
    with pytest.raises(ValueError, match=f"merges is {most + 1}: accepted are 0 to {most} of"):
        Numerics(merges=most + 1, **said)
    assert Numerics(merges=64, partial="float16").merges == 64


def roundings(numerics, dtype, kv_dtype=None, tree_kv="cache"):
    shape = AttentionShape(dtype=dtype, kv_dtype=kv_dtype, **SHAPE)
    u = Roundings.of(shape, numerics, Capabilities(tree_kv=tree_kv))
    return u.mul, u.v


@pytest.mark.parametrize(
    ("numerics", "case", "expected"),
    [
        (Numerics(), ("float32",), (0, 0)),
        (Numerics(), ("bfloat16",), (0, 0)),
        # TF32 holds every number of the half-precision dtypes.
        (Numerics(mul="tf32", v="tf32"), ("float32",), (2.0**-10, 2.0**-10)),
        (Numerics(mul="bfloat16", v="float16"), ("float32",), (2.0**-8, 2.0**-11)),
        (Numerics(mul="float32", v="float32"), ("bfloat16",), (0, 0)),
        # A code times its scale is a number of no dtype.
        (Numerics(mul="float32", v="float32"), ("bfloat16", "int8"), (2.0**-24, 2.0**-24)),
        (Numerics(), ("bfloat16", "float8_e4m3fn"), (2.0**-8, 2.0**-8)),
        (
            Numerics(mul="float32", v="float32"),
            ("float16", "int8", "operand"),
            (2.0**-11, 2.0**-11),
        ),
        (Numerics(mul="float32", v="float32"), ("float16", None, "operand"), (0, 0)),
    ],
)
def test_a_factor_is_rounded_where_its_dtype_cannot_hold_it(numerics, case, expected):
    assert roundings(numerics, *case) == expected


def test_a_sink_is_one_more_term_of_the_sum():
    assert torch.equal(limits(n=9, sinks=True).total, limits(n=10).total)
    assert not torch.equal(limits(n=9).total, limits(n=10).total)


def test_a_log_sum_exp_in_base_two_may_be_two_roundings_further_off():
    e, two = limits(), limits(capabilities=Capabilities(lse_base="2"))
    assert float(two.lse - e.lse) == pytest.approx(2 * 2.0**-24 * 2)
