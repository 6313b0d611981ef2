"""The path oracle against closed forms and against torch's own attention on explicit sequences."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape, Window
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.oracles.path_naive import attend_paths_naive

Oracle = Callable[..., PathResult]
BOTH = pytest.mark.parametrize("oracle", [attend_paths, attend_paths_naive])
FIVE_ROWS = CandidateTree(tokens=(9, 1, 2, 3, 4), parents=(-1, 0, 0, 1, 2))  # root A B C D


def tree_of(*parents: int) -> CandidateTree:
    return CandidateTree(tuple(range(len(parents))), parents)


def shape_of(
    heads: int = 1, group: int = 1, dim: int = 8, v_dim: int = 8, **more
) -> AttentionShape:
    return AttentionShape(
        num_q_heads=heads * group, num_kv_heads=heads, head_dim=dim, v_head_dim=v_dim, **more
    )


def draw(nodes: int, prefix: int, shape: AttentionShape, seed: int = 0) -> list[Tensor]:
    """q, k_prefix, v_prefix, k_tree, v_tree of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    q, kv, d, dv = shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    sizes = [(nodes, q, d), (prefix, kv, d), (prefix, kv, dv), (nodes, kv, d), (nodes, kv, dv)]
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(*size, generator=generator).to(dtype) for size in sizes]


@BOTH
def test_equal_keys_give_the_mean_of_the_values_on_the_path(oracle: Oracle) -> None:
    # Prefix values 10 and 20; nodes hold 1, 2, 4, 8, 16. C (node 3) sees 10, 20, 1, 2, 8.
    shape = shape_of()
    q, k_prefix, v_prefix, k_tree, v_tree = draw(5, 2, shape)
    k_prefix, k_tree = torch.ones_like(k_prefix), torch.ones_like(k_tree)
    v_prefix[:] = torch.tensor([10.0, 20.0]).view(2, 1, 1)
    v_tree[:] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).view(5, 1, 1)
    result = oracle(FIVE_ROWS, 2, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    means = torch.tensor([31 / 3, 33 / 4, 35 / 4, 41 / 5, 51 / 5], dtype=torch.float64)
    assert torch.allclose(result.out[:, 0, 0], means, rtol=1e-14, atol=0)
    assert torch.allclose(result.weight, result.out, rtol=1e-14, atol=0)  # all values positive
    assert result.abs_v[:, 0, 0].tolist() == [31, 33, 35, 41, 51]
    assert result.visible.tolist() == [3, 4, 4, 5, 5]


@BOTH
def test_a_lone_root_without_a_prefix_returns_its_own_value(oracle: Oracle) -> None:
    shape = shape_of(heads=2, group=3, v_dim=16)
    q, k_prefix, v_prefix, k_tree, v_tree = draw(1, 0, shape)
    result = oracle(tree_of(-1), 0, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    own = v_tree[0].double().repeat_interleave(3, dim=0)
    assert torch.equal(result.out[0], own)
    assert torch.equal(result.weight[0], own.abs())
    assert torch.equal(result.lse, result.score_max)
    assert result.visible.tolist() == [1]


@BOTH
def test_two_keys_are_weighted_by_their_logits(oracle: Oracle) -> None:
    # scale 1; q = e0; scores ln 3 and 0, so the weights are 3/4 and 1/4; values 2 and -10.
    shape = shape_of(scale=1.0)
    q, key, values = torch.zeros(2, 1, 8), torch.zeros(2, 1, 8), torch.zeros(2, 1, 8)
    q[1, 0, 0] = -1.0
    key[0, 0, 0] = -math.log(3)
    key[0, 0, 1] = 7.0  # meets a zero of q: no part of the score, nor of the sum of magnitudes
    values[0, 0, 0], values[1, 0, 0] = 2.0, -10.0
    empty = torch.zeros(0, 1, 8)
    result = oracle(tree_of(-1, 0), 0, shape, q, empty, empty, key, values)
    near = {"rel": 1e-7}  # ln 3 is rounded to float32
    assert result.out[1, 0, 0].item() == pytest.approx(-1.0, **near)
    assert result.weight[1, 0, 0].item() == pytest.approx(4.0, **near)
    assert result.abs_v[1, 0, 0].item() == 12.0
    assert result.lse[1, 0].item() == pytest.approx(math.log(4), **near)
    assert result.score_max[1, 0].item() == pytest.approx(math.log(3), **near)
    assert result.score_abs[1, 0].item() == pytest.approx(math.log(3), **near)


@BOTH
def test_the_largest_magnitude_may_belong_to_a_small_score(oracle: Oracle) -> None:
    # Key 0 scores 6 - 6 = 0 with magnitudes adding to 12; the root's own scores 1. Scale 1/2.
    shape = shape_of(scale=0.5)
    q, k_prefix = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
    q[0, 0, :2] = 1.0
    k_prefix[0, 0, :2] = torch.tensor([6.0, -6.0])
    k_tree = torch.zeros(1, 1, 8)
    k_tree[0, 0, 0] = 1.0
    result = oracle(tree_of(-1), 1, shape, q, k_prefix, k_prefix, k_tree, k_tree)
    assert (result.score_abs.item(), result.score_max.item()) == (6.0, 0.5)


def torch_attention(
    index: Sequence[int], keep: int | None, shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Last row of torch's causal attention on a sequence written out: q (Hq, D), k and v (n, Hkv, .).

    `index` is the logical index of each entry, the query's last; `keep` the last keys kept.
    """
    if shape.rotary is not None:
        turns = torch.tensor(index, dtype=torch.float64)[:, None, None] * torch.tensor(
            [shape.rotary ** (-2 * i / shape.head_dim) for i in range(shape.head_dim // 2)],
            dtype=torch.float64,
        )

        def turn(x: Tensor, turns: Tensor) -> Tensor:
            half = shape.head_dim // 2
            z = torch.complex(x[..., :half].double(), x[..., half:].double())
            z = z * torch.polar(torch.ones_like(turns), turns)
            return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)

        q, k = turn(q[None], turns[-1:])[0], turn(k, turns)
    k, v = k[-(keep or len(k)) :].double(), v[-(keep or len(v)) :].double()
    queries = torch.zeros(len(k), shape.num_q_heads, shape.head_dim, dtype=torch.float64)
    queries[-1] = q.double()
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (queries, k, v)),
        is_causal=True,
        scale=shape.score_scale,
        enable_gqa=True,
    )
    return out[0, :, -1]  # (Hq, Dv)


def explicit(
    tree: CandidateTree,
    prefix: int,
    shape: AttentionShape,
    data: list[Tensor],
    *,
    seen: Callable[[int], Sequence[int]] | None = None,
    own_index: Callable[[int], int] | None = None,
    widen: int = 0,
) -> Tensor:
    """Every node through `torch_attention`, (N, Hq, Dv). The keywords make it wrong on purpose."""
    q, k_prefix, v_prefix, k_tree, v_tree = data
    rows = []
    for node in range(len(tree)):
        nodes = list(seen(node) if seen else tree.path(node))
        index = [prefix + (own_index(u) if own_index else tree.depth[u]) for u in nodes]
        keep = None if shape.window is None else shape.window + widen
        k, v = torch.cat((k_prefix, k_tree[nodes])), torch.cat((v_prefix, v_tree[nodes]))
        rows.append(torch_attention([*range(prefix), *index], keep, shape, q[node], k, v))
    return torch.stack(rows)


SHAPES = {
    "plain": shape_of(heads=2),
    "gqa": shape_of(heads=2, group=4, dim=16, v_dim=24),
    "mqa-rotary": shape_of(heads=1, group=3, dim=16, rotary=10_000.0),
    "window": shape_of(heads=2, visibility=Window(width=6)),
    "window-rotary-bf16": shape_of(
        group=2, rotary=50.0, dtype="bfloat16", visibility=Window(width=3)
    ),
    "window-1": shape_of(visibility=Window(width=1)),
    "fp16-scale": shape_of(dtype="float16", scale=0.7),
}
CATERPILLAR = tree_of(-1, 0, 0, 1, 1, 3, 3, 5, 5, 2)


@BOTH
@pytest.mark.parametrize("prefix", [0, 1, 5, 40])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_node_is_the_last_row_of_causal_attention_on_its_sequence(
    oracle: Oracle, shape: AttentionShape, prefix: int
) -> None:
    data = draw(10, prefix, shape)
    expected = explicit(CATERPILLAR, prefix, shape, data)
    assert torch.allclose(
        oracle(CATERPILLAR, prefix, shape, *data).out, expected, rtol=0, atol=1e-12
    )


def test_a_twin_that_sees_a_sibling_is_told_apart() -> None:
    shape, data = SHAPES["plain"], draw(5, 7, SHAPES["plain"])
    right = attend_paths(FIVE_ROWS, 7, shape, *data).out
    wrong = explicit(
        FIVE_ROWS, 7, shape, data, seen=lambda v: (0, 1, 2) if v == 2 else FIVE_ROWS.path(v)
    )
    differs = (right - wrong).abs().amax(dim=(1, 2)) > 1e-3
    assert differs.tolist() == [False, False, True, False, False]


def test_a_twin_with_positions_from_row_numbers_is_told_apart() -> None:
    shape, data = SHAPES["mqa-rotary"], draw(5, 7, SHAPES["mqa-rotary"])
    right = attend_paths(FIVE_ROWS, 7, shape, *data).out
    wrong = explicit(FIVE_ROWS, 7, shape, data, own_index=lambda v: v)
    differs = (right - wrong).abs().amax(dim=(1, 2)) > 1e-3
    assert differs.tolist() == [
        False,
        False,
        True,
        True,
        True,
    ]  # root 0 and A 1 stand where they should


@pytest.mark.parametrize("widen", [-1, 1])
def test_a_twin_whose_window_is_off_by_one_is_told_apart(widen: int) -> None:
    shape, data = SHAPES["window"], draw(5, 20, SHAPES["window"])
    right = attend_paths(FIVE_ROWS, 20, shape, *data).out
    wrong = explicit(FIVE_ROWS, 20, shape, data, widen=widen)
    assert ((right - wrong).abs().amax(dim=(1, 2)) > 1e-3).all()


# Windows counted by hand on root, A, B, C under A, D under B: (width, prefix, keys each node sees).
@BOTH
@pytest.mark.parametrize(
    ("width", "prefix", "visible", "oldest_prefix"),
    [
        (1, 4, [1, 1, 1, 1, 1], [4, 5, 5, 6, 6]),
        (2, 4, [2, 2, 2, 2, 2], [3, 4, 4, 5, 5]),
        (3, 4, [3, 3, 3, 3, 3], [2, 3, 3, 4, 4]),
        (4, 4, [4, 4, 4, 4, 4], [1, 2, 2, 3, 3]),
        (6, 4, [5, 6, 6, 6, 6], [0, 0, 0, 1, 1]),
        (7, 4, [5, 6, 6, 7, 7], [0, 0, 0, 0, 0]),
        (2, 0, [1, 2, 2, 2, 2], [0, 0, 0, 1, 1]),
    ],
)
def test_a_window_starts_at_the_index_counted_by_hand(
    oracle: Oracle, width: int, prefix: int, visible: list[int], oldest_prefix: list[int]
) -> None:
    # Equal keys; values are powers of two by logical index, so the sum over the keys tells them.
    shape = shape_of(visibility=Window(width=width))
    q, k_prefix, v_prefix, k_tree, v_tree = draw(5, prefix, shape)
    v_prefix[:] = torch.tensor([2.0**p for p in range(prefix)]).view(prefix, 1, 1)
    v_tree[:] = torch.tensor([2.0 ** (prefix + d) for d in (0, 1, 1, 2, 2)]).view(5, 1, 1)
    result = oracle(FIVE_ROWS, prefix, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    last = [prefix + d for d in (0, 1, 1, 2, 2)]
    sums = [2.0 ** (t + 1) - 2.0**p for t, p in zip(last, oldest_prefix, strict=True)]
    assert result.visible.tolist() == visible
    assert result.abs_v[:, 0, 0].tolist() == sums


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_siblings_change_nothing_and_ancestors_change_something(shape: AttentionShape) -> None:
    data = draw(10, 5, shape)
    before = attend_paths(CATERPILLAR, 5, shape, *data)
    for changed in range(10):
        other = [x.clone() for x in data]
        other[3][changed] += 3
        other[4][changed] -= 3
        after = attend_paths(CATERPILLAR, 5, shape, *other)
        for node in range(10):
            same = all(
                torch.equal(getattr(before, name)[node], getattr(after, name)[node])
                for name in PathResult.__dataclass_fields__
            )
            distance = CATERPILLAR.depth[node] - CATERPILLAR.depth[changed]
            reaches = shape.window is None or distance < shape.window
            assert same == (changed not in CATERPILLAR.path(node) or not reaches)


def test_swapping_two_branches_swaps_their_outputs() -> None:
    # Nodes 1, 3, 4 are one branch and 2, 5, 6, 7 the other; renumbered, the second comes first.
    tree, swapped = tree_of(-1, 0, 0, 1, 3, 2, 2, 6), tree_of(-1, 0, 0, 1, 1, 4, 2, 6)
    renamed = [0, 2, 1, 5, 6, 7, 3, 4]  # node i of `swapped` is node renamed[i] of `tree`
    shape = SHAPES["gqa"]
    q, k_prefix, v_prefix, k_tree, v_tree = draw(8, 9, shape)
    one = attend_paths(tree, 9, shape, q, k_prefix, v_prefix, k_tree, v_tree)
    two = attend_paths(
        swapped, 9, shape, q[renamed], k_prefix, v_prefix, k_tree[renamed], v_tree[renamed]
    )
    assert torch.allclose(two.out, one.out[renamed], rtol=0, atol=1e-13)
    assert torch.equal(two.visible, one.visible[renamed])
