"""Launches a second of our Triton kernels in Triton's interpreter, on one core.

    python ci/bench/interpreter.py [--rows 8] [--prefix 32] [--rounds 9] [--at-least 0]

One request of a random tree, two query heads over one key-value head of 64 lanes, pages of four keys.
A step is what a backend does for one verify step, and holds the launches that are counted beside it.
Time is that of the process, without what others take of the core. Every kernel takes its turn in each
round; shown are the fastest and the median round, and the median time against that of an empty kernel.
Exits 1 where a step of the fastest round makes fewer launches a second than `--at-least`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch

from treeproof.contract.case import AttentionShape, KVLayout, MaskLayout, Request, VerifyCase
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.generate.pool import candidates

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")


def case(rows: int, prefix: int) -> VerifyCase:
    draw = random.Random(1)
    parents = (-1, *(draw.randrange(node) for node in range(1, rows)))
    tree = CandidateTree(tuple(range(rows)), parents)
    return VerifyCase(
        requests=(Request(tree=tree, row_of_node=tuple(range(rows)), prefix_len=prefix),),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=64),
        layout=KVLayout(page_size=4, num_slots=4 * (rows + prefix), order="shuffled"),
        mask=MaskLayout(fill_prefix=False),
    )


def steps(name: str, drawn: VerifyCase) -> dict[str, Callable[[], Any]]:
    """The stages of one Triton backend on a case, each as a call."""
    backend = load(f"treeproof.backends.triton_{name.replace('-', '_')}:triton-{name}").make()
    shape, slots, rows = drawn.shape, drawn.layout.num_slots, drawn.num_rows
    draw = torch.Generator().manual_seed(1)
    q, k, v, k_cache, v_cache = (
        torch.randn(*size, 64, generator=draw)
        for size in (
            (rows, shape.num_q_heads),
            *[(rows, shape.num_kv_heads)] * 2,
            *[(slots, 1)] * 2,
        )
    )
    c = candidates(drawn, SlotLedger.of(drawn))
    x = backend.build(c)
    accepted = backend.accept(x, x.draft_token.roll(-1))
    return {
        "build": lambda: backend.build(c),
        "attend": lambda: backend.attend(x, q, k, v, k_cache, v_cache),
        "accept": lambda: backend.accept(x, x.draft_token.roll(-1)),
        "commit": lambda: backend.commit(x, accepted, k_cache, v_cache),
    }


def empty() -> Callable[[], Any]:
    """A launch that does nothing: what Triton's interpreter takes for itself."""
    import triton

    @triton.jit
    def nothing(of):  # type: ignore[no-untyped-def]
        pass

    of = torch.zeros(1)
    return lambda: nothing[1,](of)


def launches(step: Callable[[], Any]) -> int:
    """How many kernels a step launches."""
    from triton.runtime.interpreter import GridExecutor

    counted, right = [], GridExecutor.__call__

    def counting(*arguments: Any, **named: Any) -> Any:
        counted.append(1)
        return right(*arguments, **named)

    GridExecutor.__call__ = counting
    try:
        step()
    finally:
        GridExecutor.__call__ = right
    return len(counted)


def seconds(step: Callable[[], Any]) -> float:
    """Of this process, on a processor."""
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prefix", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-least", type=float, default=0.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    drawn = case(asked.rows, asked.prefix)
    all_steps = {(name, step): run for name in BACKENDS for step, run in steps(name, drawn).items()}
    all_steps["empty kernel", ""] = empty()
    counts = {what: launches(run) for what, run in all_steps.items()}
    rounds = [
        {what: seconds(run) / counts[what] for what, run in all_steps.items()}
        for _ in range(asked.rounds)
    ]
    print(f"{'':24}{'launches':>9}{'a second, best':>16}{'median':>8}{'against empty':>15}")
    slow = False
    for what, count in counts.items():
        each = [one[what] for one in rounds]
        ratio = statistics.median(one[what] / one["empty kernel", ""] for one in rounds)
        best = 1 / min(each)
        slow |= best < asked.at_least
        median = 1 / statistics.median(each)
        print(f"{' '.join(what):24}{count:9}{best:16.0f}{median:8.0f}{ratio:15.1f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
