"""The oracle of the small model against the model as it is written down, in plain Python floats."""

from __future__ import annotations

import math

import pytest
import torch
from target_models import ATTENDING, MODELS

from treeproof.contract.target_model import NORM_FLOOR, Codes, TargetModel, weights
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.codes import kept, kept_off
from treeproof.oracles.sequence import sequence_logits
from treeproof.oracles.target import held_of, logits_behind, target_logits
from treeproof.oracles.target_steps import Steps

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))


def _eight_bits() -> list[float]:
    """Every number of e4m3, by sign, exponent and mantissa as they are written down."""
    above = [2.0 ** (e - 7) * (1 + m / 8) for e in range(1, 16) for m in range(8)][:-1]  # no NaN
    below = [2.0**-6 * m / 8 for m in range(1, 8)]
    positive = below + above
    return sorted([-a for a in positive] + [0.0] + positive)


CODES = {"float8_e4m3fn": _eight_bits(), "int8": [float(i) for i in range(-127, 128)]}


def nearest(a: float, codes: list[float]) -> float:
    """The nearest; none of the numbers here is half way between two."""
    return min(codes, key=lambda code: abs(code - a))


def plainly(model: TargetModel, tokens: list[int]) -> list[float]:
    """Logits after the last token, in plain Python floats: every token from scratch, no tensor."""
    w = {name: values.tolist() for name, values in weights(model).items()}

    def times(x: list[float], name: str) -> list[float]:
        return [
            sum(a * row[j] for a, row in zip(x, w[name], strict=True))
            for j in range(len(w[name][0]))
        ]

    def norm(x: list[float], name: str) -> list[float]:
        size = math.sqrt(sum(a * a for a in x) / len(x) + NORM_FLOOR)
        return [a / size * weight for a, weight in zip(x, w[name], strict=True)]

    def capped(score: float, cap: float | None) -> float:
        return score if cap is None else cap * math.tanh(score / cap)

    def act(a: float) -> float:
        if model.activation == "silu":
            return a / (1 + math.exp(-a))
        return a / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))

    def heads(x: list[float], name: str, layer: int, turn: int) -> list[list[float]]:
        whole = times(x, f"{name}{layer}")
        if model.qkv_bias:
            whole = [a + b for a, b in zip(whole, w[f"{name}_bias{layer}"], strict=True)]
        lanes = model.v_head_dim if name == "v" else model.head_dim
        found = [whole[i : i + lanes] for i in range(0, len(whole), lanes)]
        if name == "v":
            return found
        if model.qk_norm:
            found = [norm(one, f"{name}_norm{layer}") for one in found]
        base, turned = model.base(layer), model.turned_lanes
        for one in found:
            for i in range(turned // 2):
                first, other = (2 * i, 2 * i + 1) if model.interleaved else (i, i + turned // 2)
                a, b = one[first], one[other]
                assert base is not None
                angle = turn * base ** (-2 * i / turned)
                one[first] = a * math.cos(angle) - b * math.sin(angle)
                one[other] = b * math.cos(angle) + a * math.sin(angle)
        return found

    def added(x: list[float], more: list[float], name: str) -> list[float]:
        more = norm(more, name) if model.post_norm else more
        return [a + b for a, b in zip(x, more, strict=True)]

    def as_kept(vector: list[float], name: str, kv: int) -> list[float]:
        if model.codes is None or name == "q":
            return vector
        scale = (model.codes.k_scale if name == "k" else model.codes.v_scale)[kv]
        return [scale * nearest(a / scale, CODES[model.codes.dtype]) for a in vector]

    x = [list(w["embed"][token]) for token in tokens]
    for layer in range(model.layers):
        h = [norm(one, f"attend_norm{layer}") for one in x]
        q, k, v = (
            [
                [as_kept(one, name, kv) for kv, one in enumerate(heads(row, name, layer, t))]
                for t, row in enumerate(h)
            ]
            for name in "qkv"
        )
        for t in range(len(tokens)):
            mixed: list[float] = []
            begin = max(0, t + 1 - (model.window(layer) or t + 1))
            for n in range(model.heads):
                kv = n * model.kv_heads // model.heads
                scale = model.scale or model.head_dim**-0.5
                p = {
                    s: math.exp(
                        capped(
                            scale * sum(a * b for a, b in zip(q[t][n], k[s][kv], strict=True)),
                            model.softcap,
                        )
                        - (model.slopes[n] * (t - s) if model.slopes else 0.0)
                    )
                    for s in range(begin, t + 1)
                }
                sink = math.exp(model.sinks[n]) if model.sinks else 0.0
                mixed += [
                    sum(p[s] * v[s][kv][lane] for s in p) / (sum(p.values()) + sink)
                    for lane in range(model.v_head_dim)
                ]
            x[t] = added(x[t], times(mixed, f"o{layer}"), f"attended_norm{layer}")
            inner = norm(x[t], f"inner_norm{layer}")
            gate, up = times(inner, f"gate{layer}"), times(inner, f"up{layer}")
            product = [act(a) * b for a, b in zip(gate, up, strict=True)]
            x[t] = added(x[t], times(product, f"down{layer}"), f"carried_norm{layer}")
    return [capped(a, model.final_softcap) for a in times(norm(x[-1], "norm"), "head")]


EVERY = MODELS | ATTENDING


@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
def test_the_oracle_is_the_model_as_it_is_written_down(model: TargetModel) -> None:
    prefix = [5, 60, 0, 17]
    tokens = [3, 9, 9, 30, 31]
    found = target_logits(model, prefix, TREE, tokens)
    for node in range(5):
        sequence = prefix + [tokens[n] for n in TREE.path(node)]
        wanted = torch.tensor(plainly(model, sequence), dtype=torch.float64)
        assert torch.allclose(found.logits[node], wanted, rtol=0, atol=1e-12)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="token 61: accepted are 0 to 60"):
        target_logits(TargetModel(), [61], TREE, [0] * 5)


@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
def test_paths_of_a_batch_taken_together_are_each_path_alone(model: TargetModel) -> None:
    wide = CandidateTree(tokens=tuple(range(9)), parents=(-1, 0, 0, 0, 1, 1, 3, 6, 7))
    trees, prefixes = [TREE, wide, TREE], [[5, 60, 0, 17], [], [8]]
    tokens = [[(7 * n + b) % 61 for n in range(len(tree))] for b, tree in enumerate(trees)]
    steps = Steps(model)
    together = logits_behind(steps, [held_of(steps, p) for p in prefixes], trees, tokens)
    alone = [
        sequence_logits(model, [*prefix, *(own[n] for n in tree.path(node))])[0][-1]
        for tree, prefix, own in zip(trees, prefixes, tokens, strict=True)
        for node in range(len(tree))
    ]
    assert (together.logits - torch.stack(alone)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 3}, "heads is 3: accepted are multiples of kv_heads 2"),
        ({"rotary_lanes": 5}, "rotary_lanes is 5: accepted are even numbers"),
        ({"rotary_lanes": 18}, "rotary_lanes is 18: accepted are even numbers"),
        ({"head_dim": 9}, "head_dim is 9: accepted are even numbers"),
        ({"windows": (4,)}, "windows has 1 entries: accepted are one a layer, 2, and none"),
        ({"windows": (4, 0)}, "windows"),
        ({"layers": 0}, "layers"),
        ({"sinks": (0.0,)}, "sinks has 1 entries: accepted are one a query head, 2, and none"),
        ({"slopes": (1.0, 1.0, 1.0)}, "slopes has 3 entries"),
        (
            {"codes": Codes(dtype="int8", k_scale=(1.0,), v_scale=(1.0, 1.0))},
            "codes has 1 entries: accepted are one a key-value head, 2, and none",
        ),
        ({"activation": "relu"}, "activation is 'relu': accepted are silu, gelu"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TargetModel(**wrong)


def test_weights_of_others_are_held_to_the_shapes_of_the_model() -> None:
    model = TargetModel()
    given = {name: torch.tensor(values) for name, values in weights(model).items()}
    same = target_logits(model, [1], TREE, [0] * 5, Steps(model, given=given))
    assert torch.equal(same.logits, target_logits(model, [1], TREE, [0] * 5).logits)
    with pytest.raises(ValueError, match=r"weight norm has shape \(31,\): accepted is \(32,\)"):
        Steps(model, given=given | {"norm": torch.ones(31)})
    del given["o1"]
    with pytest.raises(ValueError, match="weight o1 has shape None"):
        Steps(model, given=given)


def test_a_number_between_two_codes_is_one_in_half_of_the_runs_and_the_other_in_the_rest() -> None:
    scale = torch.tensor([[0.5]], dtype=torch.float64)
    x = torch.tensor(
        [[1.0, 1.2499, 1.26, 90.0]], dtype=torch.float64
    )  # codes 2, 2 or 3, 3, the last
    off, signs = (
        torch.tensor(0.001),
        torch.tensor([[[1.0, 1.0, 1.0, 1.0]], [[-1.0, -1.0, 1.0, -1.0]]]),
    )
    found = kept_off(x, scale, "int8", off, signs)
    assert found[:, 0, 0].tolist() == [1.0] * 4
    assert found[:, 0, 1].tolist() == [1.5, 1.0, 1.0, 1.5]
    assert found[:, 0, 2].tolist() == [1.5] * 4
    assert found[:, 0, 3].tolist() == [63.5] * 4


def test_codes_go_to_the_even_one_of_two_that_are_as_near() -> None:
    one = torch.ones((), dtype=torch.float64)
    half_way = torch.tensor([0.5, 1.5, 2.5, -0.5], dtype=torch.float64)
    assert kept(half_way, one, "int8").tolist() == [0.0, 2.0, 2.0, -0.0]
    between = torch.tensor([1.0625, 1.1875, 17.0, 19.0], dtype=torch.float64)
    assert kept(between, one, "float8_e4m3fn").tolist() == [1.0, 1.25, 16.0, 20.0]
    for dtype, codes in CODES.items():
        every = torch.tensor(codes, dtype=torch.float64)
        assert torch.equal(kept(every, one, dtype), every)
