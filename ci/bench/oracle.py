"""How much faster the stacked path oracle is than the loop that is its definition.

    python ci/bench/oracle.py [--trees 12] [--at-least 3]

Random trees of 64 rows at prefix 512, one thread. The loop computes only the last position of each
path, and casts and rotates the prefix once for all paths. Both run in turn on every tree, so that a
busy machine slows both; a ratio is always within one turn. Exits 1 where a median ratio is below
`--at-least` or results differ by more than 1e-12.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape, Window
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.oracles.path_naive import attend_paths_naive

ROWS, PREFIX = 64, 512
BATCH = ((8, 150), (16, 150), (20, 150), (22, 150))  # a usual case: 66 rows in four requests


def shape(q_heads: int, kv_heads: int, **more: object) -> AttentionShape:
    sizes = {"num_q_heads": q_heads, "num_kv_heads": kv_heads, "head_dim": 64, "v_head_dim": 64}
    return AttentionShape(**(sizes | more))  # type: ignore[arg-type]


SHAPES = {
    "4 heads": shape(4, 4),
    "8 heads over 2": shape(8, 2),
    "8 heads over 4, rotary": shape(8, 4, rotary=10_000.0),
    "8 heads, bfloat16": shape(8, 8, dtype="bfloat16"),
    "8 heads over 2, window 128": shape(8, 2, visibility=Window(width=128)),
}


def random_tree(rows: int, rng: random.Random) -> CandidateTree:
    return CandidateTree(tuple(range(rows)), (-1, *(rng.randrange(i) for i in range(1, rows))))


def draw(rows: int, prefix: int, shape: AttentionShape, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, kv, d, dv = shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.v_head_dim
    sizes = [(rows, q, d), (prefix, kv, d), (prefix, kv, dv), (rows, kv, d), (rows, kv, dv)]
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(*size, generator=generator).to(dtype) for size in sizes]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def difference(a: PathResult, b: PathResult) -> float:
    """Largest difference of any field, relative where the number is above 1."""
    worst = 0.0
    for name in PathResult.__dataclass_fields__:
        x, y = getattr(a, name).double(), getattr(b, name).double()
        worst = max(worst, float(((x - y).abs() / y.abs().clamp(min=1)).max()))
    return worst


def measure(shape: AttentionShape, trees: int) -> tuple[list[float], list[float], float]:
    """Seconds of the loop and of the stacks on each tree, and the worst difference."""
    loop, stacks, worst = [], [], 0.0
    for seed in range(-1, trees):  # -1 warms up
        tree = random_tree(ROWS, random.Random(seed))
        data = draw(ROWS, PREFIX, shape, seed + 1)
        slow = attend_paths_naive(tree, PREFIX, shape, *data)
        fast = attend_paths(tree, PREFIX, shape, *data)
        worst = max(worst, difference(fast, slow))
        if seed >= 0:
            loop.append(seconds(lambda: attend_paths_naive(tree, PREFIX, shape, *data)))  # noqa: B023
            stacks.append(seconds(lambda: attend_paths(tree, PREFIX, shape, *data)))  # noqa: B023
    return loop, stacks, worst


def usual_case(shape: AttentionShape, turns: int) -> float:
    """Median seconds of one case of 66 rows in four requests at prefix 150."""
    rng = random.Random(0)
    requests = [
        (random_tree(rows, rng), prefix, draw(rows, prefix, shape, rows)) for rows, prefix in BATCH
    ]

    def once() -> list[PathResult]:
        return [attend_paths(tree, prefix, shape, *data) for tree, prefix, data in requests]

    taken = [seconds(once) for _ in range(turns)]
    return statistics.median(taken)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--trees", type=int, default=12)
    options.add_argument("--at-least", type=float, default=3.0)
    given = options.parse_args()
    torch.set_num_threads(1)
    print(f"{ROWS} rows, prefix {PREFIX}, {given.trees} trees, medians; then 66 rows in 4 requests")
    print(
        f"{'shape':28} {'loop':>9} {'stacks':>9} {'ratio':>6} {'least':>6} {'differ':>8} {'66 rows':>9}"
    )
    good = True
    for name, shape in SHAPES.items():
        loop, stacks, worst = measure(shape, given.trees)
        ratios = [a / b for a, b in zip(loop, stacks, strict=True)]
        good &= statistics.median(ratios) >= given.at_least and worst <= 1e-12
        print(
            f"{name:28} {statistics.median(loop) * 1e3:6.1f} ms {statistics.median(stacks) * 1e3:6.1f} ms "
            f"{statistics.median(ratios):6.1f} {min(ratios):6.1f} {worst:8.0e} "
            f"{usual_case(shape, given.trees) * 1e3:6.1f} ms"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
