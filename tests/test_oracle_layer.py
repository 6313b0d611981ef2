"""Softcap, sinks, ALiBi and quantised caches in the path oracle, against closed forms."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape, Full, Window
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles import path
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.oracles.path_naive import attend_paths_naive
from treeproof.oracles.stored import stored

Oracle = Callable[..., PathResult]
BOTH = pytest.mark.parametrize("oracle", [attend_paths, attend_paths_naive])
ROOT = CandidateTree((0,), (-1,))
FORK = CandidateTree((0, 1, 2, 3), (-1, 0, 0, 2))


def shape_of(**more: object) -> AttentionShape:
    given = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8, "scale": 1.0}
    return AttentionShape(**given | more)  # type: ignore[arg-type]


def lane(*numbers: float) -> Tensor:
    """(n, 1, 8), these numbers in lane 0."""
    out = torch.zeros(len(numbers), 1, 8)
    out[:, 0, 0] = torch.tensor(numbers)
    return out


def one_row(
    oracle: Oracle,
    shape: AttentionShape,
    layer: LayerParameters,
    scores: list[float],
    v: list[float],
) -> PathResult:
    """A root whose keys, its own last, score these numbers before anything is done to them."""
    keys, values = lane(*scores), lane(*v)
    return oracle(ROOT, len(scores) - 1, shape, lane(1.0), keys[:-1], values[:-1], keys[-1:],
                  values[-1:], layer)  # fmt: skip


@BOTH
def test_a_softcap_bends_scores_before_the_softmax(oracle: Oracle) -> None:
    # 2 tanh(x / 2) of 2 artanh(1/2) = ln 3 is 1, and of 0 it is 0: weights e and 1.
    result = one_row(oracle, shape_of(softcap=2.0), LayerParameters(), [math.log(3), 0.0], [1.0, 0])
    assert result.out[0, 0, 0].item() == pytest.approx(math.e / (1 + math.e), rel=1e-7)
    assert result.lse.item() == pytest.approx(math.log(math.e + 1), rel=1e-7)
    assert result.score_max.item() == pytest.approx(1.0, rel=1e-7)
    # What errors are made of is the product before the cap.
    assert result.score_abs.item() == pytest.approx(math.log(3), rel=1e-7)


@BOTH
def test_the_scale_comes_before_the_softcap(oracle: Oracle) -> None:
    shape = shape_of(softcap=2.0, scale=0.5)
    result = one_row(oracle, shape, LayerParameters(), [2 * math.log(3), 0.0], [1.0, 0.0])
    assert result.score_max.item() == pytest.approx(1.0, rel=1e-7)


@BOTH
def test_a_sink_takes_weight_and_gives_no_value(oracle: Oracle) -> None:
    # Masses 3 and 1 of values 2 and 10, and a sink of 4: (6 + 10) / 8.
    layer = LayerParameters(sinks=torch.tensor([math.log(4)]))
    result = one_row(oracle, shape_of(sinks=True), layer, [math.log(3), 0.0], [2.0, 10.0])
    assert result.out[0, 0, 0].item() == pytest.approx(2.0, rel=1e-6)
    assert result.weight[0, 0, 0].item() == pytest.approx(2.0, rel=1e-6)
    assert result.lse.item() == pytest.approx(math.log(4), rel=1e-6)
    assert result.lse_sink.item() == pytest.approx(math.log(8), rel=1e-6)
    assert result.score_max.item() == pytest.approx(math.log(4), rel=1e-6)
    assert result.bias_abs.item() == pytest.approx(math.log(4), rel=1e-6)
    assert result.visible.tolist() == [2]


@BOTH
@pytest.mark.parametrize("sink", [-2000.0, 2000.0])
def test_a_sink_far_from_all_scores_is_no_overflow(oracle: Oracle, sink: float) -> None:
    layer = LayerParameters(sinks=torch.tensor([sink]))
    result = one_row(oracle, shape_of(sinks=True), layer, [0.0, 0.0], [1.0, 3.0])
    assert result.out[0, 0, 0].item() == (2.0 if sink < 0 else 0.0)
    assert result.lse_sink.item() == pytest.approx(max(sink, math.log(2)))


@BOTH
def test_alibi_counts_from_the_logical_index_of_the_row(oracle: Oracle) -> None:
    # No products, slope ln 2: a key d steps back weighs 2 ** -d. Node 3 stands at depth 2, row 3.
    layer = LayerParameters(alibi_slopes=torch.tensor([math.log(2)]))
    values = lane(1, 10, 100), lane(1000, 0, 10_000, 100_000)
    zero = lane(0, 0, 0), lane(0, 0, 0, 0)
    result = oracle(FORK, 3, shape_of(alibi=True), zero[1], zero[0], values[0], zero[1], values[1],
                    layer)  # fmt: skip
    root = (1 / 8 + 10 / 4 + 100 / 2 + 1000) / (1 + 1 / 2 + 1 / 4 + 1 / 8)
    deep = (1 / 32 + 10 / 16 + 100 / 8 + 1000 / 4 + 10_000 / 2 + 100_000) / (2 - 1 / 32)
    assert result.out[0, 0, 0].item() == pytest.approx(root, rel=1e-6)
    assert result.out[3, 0, 0].item() == pytest.approx(deep, rel=1e-6)
    steps = [3, 4, 4, 5]
    assert result.bias_abs[:, 0].tolist() == pytest.approx([s * math.log(2) for s in steps])
    assert result.lse[3, 0].item() == pytest.approx(math.log(2 - 1 / 32), rel=1e-6)


@BOTH
def test_alibi_comes_after_the_softcap(oracle: Oracle) -> None:
    layer = LayerParameters(alibi_slopes=torch.tensor([3.0]))
    shape = shape_of(alibi=True, softcap=2.0)
    result = one_row(oracle, shape, layer, [math.log(3), 0.0], [1.0, 0.0])
    # 1 - 3 against 0.
    assert result.out[0, 0, 0].item() == pytest.approx(1 / (1 + math.exp(2)), rel=1e-6)


@BOTH
def test_each_query_head_has_its_own_slope_and_sink(oracle: Oracle) -> None:
    shape = shape_of(num_q_heads=4, num_kv_heads=2, alibi=True, sinks=True)
    slopes, sinks = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([-9e9, 0.0, 1.0, 2.0])
    q, k, v = torch.zeros(2, 4, 8), torch.zeros(2, 2, 8), torch.ones(2, 2, 8)
    v[0, 1], v[1, 1] = 5.0, 7.0
    result = oracle(
        CandidateTree((0, 1), (-1, 0)), 0, shape, q, k[:0], v[:0], k, v,
        LayerParameters(sinks=sinks, alibi_slopes=slopes),
    )  # fmt: skip
    for head, (slope, sink) in enumerate(zip(slopes.tolist(), sinks.tolist(), strict=True)):
        first, second = (1.0, 1.0) if head < 2 else (5.0, 7.0)
        mass = math.exp(-slope) + 1 + math.exp(sink)
        expected = (first * math.exp(-slope) + second) / mass
        assert result.out[1, head, 0].item() == pytest.approx(expected, rel=1e-12)


@BOTH
def test_keys_and_values_are_those_that_the_cache_gives_back(oracle: Oracle) -> None:
    # Scale 1/2: codes of 0.8 and 3.3 are 2 and 7, of the value 0.6 it is 1 (V's own scale 1/2).
    layer = LayerParameters(k_scale=torch.tensor([0.5]), v_scale=torch.tensor([0.5]))
    result = one_row(oracle, shape_of(kv_dtype="int8"), layer, [0.8, 3.3], [0.6, 0.0])
    assert result.score_max.item() == 3.5
    assert result.out[0, 0, 0].item() == pytest.approx(0.5 / (1 + math.exp(2.5)), rel=1e-12)


@BOTH
def test_keys_are_rotated_before_they_are_stored(oracle: Oracle) -> None:
    # A quarter turn at index 1 sends lane 0 to lane 4: 0.8 is stored there, as 1.0.
    shape = shape_of(kv_dtype="int8", rotary=10_000.0)
    layer = LayerParameters(k_scale=torch.tensor([1.0]), v_scale=torch.tensor([1.0]))
    key, query = torch.zeros(1, 1, 8), torch.zeros(2, 1, 8)
    key[0, 0, 0], query[1, 0, 0] = 0.8, 1.0
    tree = CandidateTree((0, 1), (-1, 0))
    keys = torch.cat((key, key))
    result = oracle(tree, 0, shape, query, keys[:0], keys[:0], keys, keys, layer)
    # cos 1 = 0.54: lanes 0 and 4 hold 0.43 and 0.67, stored 0 and 1; the query turned by 1 as well.
    assert result.score_max[1, 0].item() == pytest.approx(max(math.cos(1), math.sin(1)), rel=1e-6)


def every_float8() -> Tensor:
    codes = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(torch.float8_e4m3fn).double()
    return codes[~codes.isnan()].view(1, 1, -1)


def test_every_code_of_float8_is_stored_as_itself() -> None:
    codes = every_float8()
    assert codes.numel() == 254
    assert torch.equal(stored(codes * 0.375, torch.tensor([0.375]), "float8_e4m3fn"), codes * 0.375)


def test_between_two_codes_of_float8_the_nearer_is_stored_and_half_way_the_even() -> None:
    codes = every_float8().flatten().unique()
    for low, high in zip(codes[:-1].tolist(), codes[1:].tolist(), strict=True):
        middle = (low + high) / 2
        x = torch.tensor([low + 0.49 * (high - low), low + 0.51 * (high - low), middle])
        got = stored(x.double().view(1, 1, 3), torch.ones(1), "float8_e4m3fn").flatten().tolist()
        assert got[:2] == [low, high]
        # torch rounds a float32 to the even code; a middle has one bit more than a code.
        even = torch.tensor(middle).to(torch.float8_e4m3fn).item()
        assert got[2] == even


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_random_numbers_are_stored_as_torch_converts_them(kv_dtype: str) -> None:
    x = torch.randn(500, 2, 16, generator=torch.Generator().manual_seed(0)).double() * 3
    scale = torch.tensor([0.037, 0.0051])  # the second saturates
    wide = x / scale.double()[:, None]
    if kv_dtype == "int8":
        codes = wide.round().clamp(-127, 127).to(torch.int8).double()
    else:
        codes = wide.clamp(-448, 448).to(torch.float8_e4m3fn).double()
    assert torch.equal(stored(x, scale, kv_dtype), codes * scale.double()[:, None])


def test_what_a_layer_lacks_is_named() -> None:
    for more, name in (
        ({"sinks": True}, "sinks"),
        ({"alibi": True}, "alibi_slopes"),
        ({"kv_dtype": "int8"}, "k_scale"),
    ):
        for oracle in (attend_paths, attend_paths_naive):
            with pytest.raises(ValueError, match=f"^{name} is None: accepted is a tensor of shape"):
                one_row(oracle, shape_of(**more), LayerParameters(), [0.0], [1.0])
    wrong = LayerParameters(sinks=torch.zeros(2))
    with pytest.raises(ValueError, match=r"sinks is of shape \(2,\): accepted is .* \(1,\)"):
        one_row(attend_paths, shape_of(sinks=True), wrong, [0.0], [1.0])


def test_parameters_of_a_layer_that_has_none_change_nothing() -> None:
    layer = LayerParameters(*(torch.tensor([0.7]) for _ in range(4)))
    for oracle in (attend_paths, attend_paths_naive):
        with_them = one_row(oracle, shape_of(), layer, [0.3, 1.0], [1.0, 2.0])
        without = one_row(oracle, shape_of(), LayerParameters(), [0.3, 1.0], [1.0, 2.0])
        assert all(torch.equal(a, vars(without)[name]) for name, a in vars(with_them).items())


def random_case(seed: int) -> tuple[CandidateTree, int, AttentionShape, LayerParameters]:
    rng = random.Random(seed)
    nodes, prefix = rng.choice([1, 9, 33]), rng.choice([0, 1, 63, 130])
    heads, group = rng.choice([(1, 1), (2, 3), (1, 4)])
    window = rng.choice([None, 1, 7, prefix + 2])
    shape = AttentionShape(
        num_q_heads=heads * group, num_kv_heads=heads, head_dim=24, v_head_dim=40,
        dtype=rng.choice(["float32", "bfloat16"]), rotary=rng.choice([None, 10_000.0]),
        scale=rng.choice([None, 0.6]), softcap=rng.choice([None, 3.0, 30.0]),
        sinks=rng.random() < 0.6, alibi=rng.random() < 0.6,
        kv_dtype=rng.choice([None, "int8", "float8_e4m3fn"]),
        visibility=Full() if window is None else Window(width=window),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    layer = LayerParameters(
        sinks=torch.randn(heads * group, generator=draw) * 3,
        alibi_slopes=torch.rand(heads * group, generator=draw),
        k_scale=0.02 + 0.03 * torch.rand(heads, generator=draw),
        v_scale=0.02 + 0.03 * torch.rand(heads, generator=draw),
    )
    parents = [rng.randrange(max(0, i - 5), i) for i in range(1, nodes)]
    return CandidateTree(tuple(range(nodes)), (-1, *parents)), prefix, shape, layer


@pytest.mark.parametrize("chunk", [300, 1 << 20])
@pytest.mark.parametrize("seed", range(24))
def test_stacked_lists_equal_the_loop_that_is_the_definition(
    monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int
) -> None:
    monkeypatch.setattr(path, "CHUNK", {"cpu": chunk})
    tree, prefix, shape, layer = random_case(seed)
    draw = torch.Generator().manual_seed(seed)
    q, kv, d, dv = shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    n, dtype = len(tree), getattr(torch, shape.dtype)
    sizes = [(n, q, d), (prefix, kv, d), (prefix, kv, dv), (n, kv, d), (n, kv, dv)]
    data = [torch.randn(*size, generator=draw).to(dtype) for size in sizes]
    fast, slow = (f(tree, prefix, shape, *data, layer) for f in (attend_paths, attend_paths_naive))
    for name in PathResult.__dataclass_fields__:
        a, b = getattr(fast, name), getattr(slow, name)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), name
