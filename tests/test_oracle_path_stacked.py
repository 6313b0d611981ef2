"""The stacked path oracle against the loop that is its definition, and what both refuse."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape, Full, Window
from treeproof.contract.tree import CandidateTree
from treeproof.oracles import path
from treeproof.oracles.path import PathResult, attend_batch, attend_paths
from treeproof.oracles.path_naive import attend_paths_naive

NAMES = ("q", "k_prefix", "v_prefix", "k_tree", "v_tree")


def draw(nodes: int, prefix: int, shape: AttentionShape, seed: int) -> list[Tensor]:
    """Normal numbers in the order of NAMES."""
    generator = torch.Generator().manual_seed(seed)
    q, kv, d, dv = shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    sizes = [(nodes, q, d), (prefix, kv, d), (prefix, kv, dv), (nodes, kv, d), (nodes, kv, dv)]
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(*size, generator=generator).to(dtype) for size in sizes]


def random_case(seed: int) -> tuple[CandidateTree, int, AttentionShape]:
    rng = random.Random(seed)
    nodes, prefix, back = (
        rng.choice([1, 2, 9, 33, 64]),
        rng.choice([0, 1, 63, 130]),
        rng.choice([1, 3, 99]),
    )
    heads, group = rng.choice([(1, 1), (2, 3), (3, 1), (1, 8)])
    window = rng.choice([None, 1, 2, 7, prefix + 2, 1000])
    shape = AttentionShape(
        num_q_heads=heads * group,
        num_kv_heads=heads,
        head_dim=rng.choice([8, 24, 64]),
        v_head_dim=rng.choice([8, 40]),
        dtype=rng.choice(["float32", "bfloat16", "float16"]),
        rotary=rng.choice([None, 10_000.0]),
        visibility=Full() if window is None else Window(width=window),
    )
    parents = [rng.randrange(max(0, i - back), i) for i in range(1, nodes)]
    return CandidateTree(tuple(range(nodes)), (-1, *parents)), prefix, shape


@pytest.mark.parametrize("chunk", [300, 20_000, 1 << 20])
@pytest.mark.parametrize("seed", range(16))
def test_stacked_lists_equal_the_loop_that_is_the_definition(
    monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int
) -> None:
    monkeypatch.setattr(
        path, "CHUNK", {"cpu": chunk}
    )  # 300: hardly two keys or two nodes at a time
    tree, prefix, shape = random_case(seed)
    data = draw(len(tree), prefix, shape, seed)
    fast, slow = (f(tree, prefix, shape, *data) for f in (attend_paths, attend_paths_naive))
    for name in PathResult.__dataclass_fields__:
        a, b = getattr(fast, name), getattr(slow, name)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("oracle", [attend_paths, attend_paths_naive])
@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_does_not_fit_is_named(oracle: Callable[..., PathResult], name: str) -> None:
    tree = CandidateTree((9, 1, 2), (-1, 0, 0))
    shape = AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=16)
    data = dict(zip(NAMES, draw(3, 3, shape, seed=0), strict=True))
    with pytest.raises(ValueError, match=rf"^{name} has shape .*: accepted is "):
        oracle(tree, 3, shape, **{**data, name: data[name][:1]})
    with pytest.raises(ValueError, match=rf"^{name} is torch.float64: accepted is torch.float32"):
        oracle(tree, 3, shape, **{**data, name: data[name].double()})


@pytest.mark.parametrize("chunk", [300, 1 << 20])
@pytest.mark.parametrize("window", [None, 1, 7, 140])
def test_a_batch_gives_every_request_what_the_loop_gives_it_alone(
    monkeypatch: pytest.MonkeyPatch, window: int | None, chunk: int
) -> None:
    monkeypatch.setattr(path, "CHUNK", {"cpu": chunk})
    shape = AttentionShape(
        num_q_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=16, rotary=10_000.0,
        visibility=Full() if window is None else Window(width=window),
    )  # fmt: skip
    drawn = [random_case(seed)[:2] for seed in (3, 5, 6, 11)]
    trees, prefixes = (list(side) for side in zip(*drawn, strict=True))
    prefixes[1] = 0  # a request without a prefix between others
    data = [draw(len(t), p, shape, p + len(t)) for t, p in zip(trees, prefixes, strict=True)]

    whole = attend_batch(trees, prefixes, shape, *map(list, zip(*data, strict=True)))

    alone = [
        attend_paths_naive(t, p, shape, *d) for t, p, d in zip(trees, prefixes, data, strict=True)
    ]
    begin = 0
    for one in alone:
        found, begin = whole.of(slice(begin, begin + len(one.out))), begin + len(one.out)
        for name in PathResult.__dataclass_fields__:
            a, b = getattr(found, name), getattr(one, name)
            assert torch.allclose(a.double(), b.double(), rtol=1e-12, atol=1e-12), name
    assert begin == len(whole.out)
