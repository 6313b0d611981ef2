"""Sinks, slopes and scales of a case: drawn from its seed, and of the size that shows."""

import pytest
import torch

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.generate.data import logical_data
from treeproof.generate.layer import alibi_slopes, layer_parameters, neutral
from treeproof.oracles.stored import stored
from treeproof.properties.probes.quantised import codes, decoded


def case_of(seed=7, **shape):
    return VerifyCase(
        requests=(Request(tree=CandidateTree((0,), (-1,)), row_of_node=(0,), prefix_len=300),),
        shape=AttentionShape(num_q_heads=8, num_kv_heads=4, head_dim=16, v_head_dim=16, **shape),
        layout=KVLayout(page_size=1, num_slots=512),
        seed=seed,
    )


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),  # four heads, and every other one of eight
        (5, [2, 4, 6, 8, 1]),
        (12, [*range(1, 9), 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_the_series_of_the_paper(heads, exponents):
    assert alibi_slopes(heads) == [2.0**-e for e in exponents]


def test_a_plain_layer_has_no_parameters():
    assert set(vars(layer_parameters(case_of())).values()) == {None}


def test_parameters_follow_from_the_seed_and_stay_what_they_are():
    shape = {"sinks": True, "alibi": True, "kv_dtype": "int8"}
    one, same, other = (layer_parameters(case_of(seed, **shape)) for seed in (7, 7, 8))
    assert all(torch.equal(a, vars(same)[name]) for name, a in vars(one).items())
    assert not torch.equal(one.sinks, other.sinks)
    assert not torch.equal(one.k_scale, other.k_scale)
    assert not torch.equal(one.k_scale, one.v_scale)
    assert len(set(one.k_scale.tolist())) == 4
    assert [t.dtype for t in vars(one).values()] == [torch.float32] * 4
    # Eight significant bits: in bfloat16 and float16 they are the same numbers.
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(one.sinks, one.sinks.to(dtype).float())
    assert one.sinks.tolist() == GOLDEN


GOLDEN = [
    1.0703125, 3.53125, 3.984375, 2.421875, 1.6640625, 1.84375, 0.318359375, -0.06005859375,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_a_number_handed_over_has_one_nearest_code_however_it_is_looked_for(kv_dtype, dtype):
    """By a quotient or by a product with the reciprocal, in float32 or in float64."""
    case = case_of(dtype=dtype, kv_dtype=kv_dtype)
    scale, kept = layer_parameters(case).k_scale, getattr(torch, kv_dtype)
    held = codes(logical_data(case).k_prefix[0], scale, kept)
    given = decoded(held, scale).to(getattr(torch, dtype))
    again = [
        given.float() / scale[:, None],
        given.float() * (1 / scale)[:, None],
        given.double() / scale.double()[:, None],
    ]
    if kv_dtype == "int8":
        again = [t.round() for t in again]
    for found in again:
        assert torch.equal(found.to(kept).double(), held.double())
    assert held.double().abs().max() <= (100 if kv_dtype == "int8" else 64)
    assert held.double().abs().max() >= (40 if kv_dtype == "int8" else 26)


def test_what_no_code_can_say_is_the_last_code_or_zero():
    numbers = torch.tensor([[[1e9, -1e9, float("nan")]]])
    scale = torch.ones(1)
    assert codes(numbers, scale, torch.int8).flatten().tolist() == [127, -127, 0]
    found = codes(numbers, scale, torch.float8_e4m3fn).float().flatten()
    assert found[:2].tolist() == [448, -448]
    assert found[2].isnan()


def test_a_number_next_to_half_way_goes_to_the_nearer_code():
    """Half way between 1 and 1.125 is 1.0625; in float32 the three numbers are the same."""
    half = 1.0625
    numbers = torch.tensor([[[half - 1e-10, half, half + 1e-10]]], dtype=torch.float64)
    assert len(set(numbers.float().flatten().tolist())) == 1
    for sign in (1, -1):
        found = codes(sign * numbers, torch.ones(1), torch.float8_e4m3fn).float().flatten()
        assert (sign * found).tolist() == [1.0, 1.0, 1.125]
    exact = stored(numbers[0], torch.ones(1), "float8_e4m3fn")
    assert exact.flatten().tolist() == [1.0, 1.0, 1.125]


def test_neutral_parameters_change_nothing():
    layer = layer_parameters(case_of(sinks=True, alibi=True, kv_dtype="int8"))
    plain = neutral(layer)
    assert float(torch.exp(plain.sinks - 0.0).max()) == 0.0
    assert plain.alibi_slopes.tolist() == [0.0] * 8
    assert plain.k_scale.tolist() == plain.v_scale.tolist() == [1.0] * 4
    assert set(vars(neutral(layer_parameters(case_of()))).values()) == {None}
    assert torch.isfinite(plain.sinks.half()).all()
