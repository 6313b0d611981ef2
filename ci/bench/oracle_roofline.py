"""How near the float64 oracle comes to what a GPU can do at all.

    python ci/bench/oracle_roofline.py [--device cuda] [--requests 8] [--rows 64] [--prefix 32768]

R requests of N rows, P prefix keys, Hq query heads of D lanes, values as wide. The oracle needs, for
every row and query head, a product with each key and one with each value, of the numbers and of their
magnitudes (the error bound asks for those):

    FLOPs = 4 products x 2 x R N Hq P D
    bytes = keys and values once, as they come (2 bytes each) x 2 R P Hkv D, and results

The roofline is the larger of FLOPs over the rate of a large float64 matrix product and bytes over the
rate of a large copy, both measured here, in this run. Paths beside the prefix are left out of it:
they are less than a thousandth. Exits 1 where the oracle takes more than `--at-most` times as long.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from treeproof.contract.case import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path import attend_batch


def seconds(work: Callable[[], object], device: str, turns: int = 5) -> float:
    """Median of `turns`, after one that warms up."""
    taken = []
    for turn in range(turns + 1):
        if device != "cpu":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize(device)
        if turn:
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def flops_a_second(device: str, size: int) -> float:
    a, b = (torch.randn(size, size, dtype=torch.float64, device=device) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device)


def bytes_a_second(device: str, count: int) -> float:
    a = torch.zeros(count, dtype=torch.float64, device=device)
    b = torch.empty_like(a)
    return 2 * 8 * count / seconds(lambda: b.copy_(a), device)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=32768)
    parser.add_argument("--at-most", type=float, default=3.0)
    given = parser.parse_args()
    on_gpu = given.device != "cpu"
    shape = AttentionShape(
        num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, dtype="bfloat16"
    )
    rng = random.Random(0)
    trees = [
        CandidateTree(
            tuple(range(given.rows)), (-1, *(rng.randrange(i) for i in range(1, given.rows)))
        )
        for _ in range(given.requests)
    ]
    sizes = {"q": (given.rows, 32), "k_prefix": (given.prefix, 8), "v_prefix": (given.prefix, 8)}
    sizes |= {"k_tree": (given.rows, 8), "v_tree": (given.rows, 8)}
    data = {
        name: [
            torch.randn(*size, 128, device=given.device).to(torch.bfloat16)
            for _ in range(given.requests)
        ]
        for name, size in sizes.items()
    }
    lengths = [given.prefix] * given.requests
    taken = seconds(lambda: attend_batch(trees, lengths, shape, **data), given.device)
    pairs = given.requests * given.rows * 32 * given.prefix
    flops = 4 * 2 * pairs * 128
    size = 2 * 2 * given.requests * given.prefix * 8 * 128
    size += 8 * given.requests * given.rows * 32 * (3 * 128 + 5)
    rate = flops_a_second(given.device, 8192 if on_gpu else 1024)
    copied = bytes_a_second(given.device, 1 << (28 if on_gpu else 24))
    roofline = max(flops / rate, size / copied)
    device = torch.cuda.get_device_name(given.device) if on_gpu else "CPU"
    print(
        f"{device}: {given.requests} x {given.rows} rows, prefix {given.prefix}, 32/8 heads of 128\n"
        f"  measured here: {rate / 1e12:.1f} TFLOP/s float64, {copied / 1e9:.0f} GB/s\n"
        f"  {flops / 1e9:.0f} GFLOP, {size / 1e9:.2f} GB: roofline {roofline * 1e3:.2f} ms\n"
        f"  oracle {taken * 1e3:.2f} ms, {taken / roofline:.2f} times the roofline"
    )
    return int(taken > given.at_most * roofline)


if __name__ == "__main__":
    raise SystemExit(main())
