"""Trees a minute through the attention checks, beside an `allclose` loop over the same kernel.

    python ci/bench/throughput.py [BACKEND...] [--device cuda] [--seconds 20] [--requests 128]

A tree is one distinct request checked with all probes of attention: bound, writes, poison,
tomography, checksum and chorus. Many requests go in one launch. The loop beside it checks one tree
a launch against a dense reference in float32, with a tolerance: what people write by hand. Import,
compilation and warm-up cases of each shape stand apart.

The same cases are then checked once more with every call of the backend timed by itself, on a device at
rest: what it takes until it returns (planning in Python is the backend's), and until the device is done.
What the first wall time has over the oracle's and those calls' is what treeproof itself takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as with_fields
from itertools import count, islice

import torch
from alone import Alone, own_waits, synchronise
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.event import Checked
from treeproof.contract.failure import ATTENTION
from treeproof.contract.registry import Backend, load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.prepared import prepare
from treeproof.generate.bulk import BulkShape, bulk_case
from treeproof.generate.cases import pages_of
from treeproof.properties.contract import valid_built
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import launch

PROBES = ATTENTION - {"clock", "kernels"}
COLUMNS = frozenset({"visibility", "kv", "output", "contract"})


def cases(run: int, requests: int, shape: BulkShape, rows: int) -> Iterator[VerifyCase]:
    """Without end; the mask modes alternate."""
    for number in count(run * 100_003 + 1):
        mode = MaskMode.QLEN_ONLY if number % 2 else MaskMode.FULL_MASK
        yield bulk_case(number, shape, requests, mode, (8, rows))


def by_tolerance(case: VerifyCase, backend: Backend, device: str) -> bool:
    """What a hand-written loop does for one tree: a launch, a dense reference, allclose."""
    prepared = prepare(case, device, 12)
    scene, made = prepared.scene, prepared.candidates
    instance = backend.make()
    x = reference.build(copied(made))
    if "build" in backend.stages:
        x = with_fields(x, **valid_built(instance.build(copied(made)), scene))
    laid = random_data.contents(scene, x, prepared.data, random_data.QUIET)
    done = launch(instance.attend, scene, x, laid, "random")
    (request,) = case.requests
    wanted = dense(request, case.shape, *(t[0].float() for t in vars(prepared.data).values()))
    return torch.allclose(done.attended.out[scene.node_rows].float(), wanted, rtol=2e-2, atol=2e-2)


def dense(
    request: Request, shape: AttentionShape, q: Tensor, kp: Tensor, vp: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """(N, Hq, Dv) float32: masked softmax over prefix and tree."""
    seen = torch.zeros(len(q), len(kp) + len(k), dtype=torch.bool)
    seen[:, : len(kp)] = True
    for node in range(len(request.tree)):
        seen[node, [len(kp) + a for a in request.tree.path(node)]] = True
    keys, values = (
        torch.cat(pair).repeat_interleave(shape.group_size, 1) for pair in ((kp, k), (vp, v))
    )
    scores = torch.einsum("nhd,lhd->hnl", q, keys) * shape.score_scale
    p = scores.masked_fill(~seen.to(q.device), float("-inf")).softmax(-1)
    return torch.einsum("hnl,lhd->nhd", p, values)


def checked(cases: Sequence[VerifyCase], backend: Backend, options: CheckOptions) -> list[Run]:
    """Each case with its wall time, the device at rest before and after."""
    runs = []
    for case in cases:
        synchronise(options.device)
        start = time.perf_counter()
        result = check_case(case, backend, options)
        synchronise(options.device)
        runs.append(Run(time.perf_counter() - start, result))
        assert not result.failures, result.failures[0].message
        statuses = {c.status for c in result.cells if c.evidence == "measured"}
        assert statuses <= {"pass", "not-checked"}, statuses
    return runs


@dataclass(frozen=True)
class Run:
    seconds: float
    result: Checked


def measure(name: str, given: argparse.Namespace) -> dict[str, object]:
    backend = load(name)
    options = CheckOptions(
        device=given.device, profile="gpu", identities=COLUMNS, evidence=frozenset({"measured"}),
        probes=PROBES,
    )  # fmt: skip

    def able(case: VerifyCase) -> bool:
        return backend.capabilities.refusal(case, given.device) is None

    shapes, drawn = [], []
    for shape in (BulkShape(dtype, page) for dtype in given.dtype for page in given.page):
        stream = cases(9, given.requests, shape, given.rows)
        warm = [case for case in islice(stream, 2) if able(case)]  # one of either mask
        if warm:
            checked(warm, backend, options)
            shapes.append(f"{shape.dtype}, pages of {shape.page_size}")
            stream = cases(given.seed, given.requests, shape, given.rows)
            drawn.append(list(islice(filter(able, stream), given.cases)))
    if not drawn:
        refused = backend.capabilities.refusal(next(stream), given.device)
        return {"backend": name, "refused": refused}
    turns, runs, spent = [case for turn in zip(*drawn, strict=True) for case in turn], [], 0.0
    for case in turns:
        if spent < given.seconds:
            runs += checked([case], backend, options)
            spent += runs[-1].seconds
    turns = turns[: len(runs)]
    trees = sum(len(case.requests) for case in turns)
    oracle = sum(run.result.seconds.get("oracle", 0.0) for run in runs)
    apart = Alone(backend, given.device)
    checked(turns, apart.backend, options)
    with own_waits() if given.device != "cpu" else nullcontext([]) as waits:
        checked(turns[:1], backend, options)
    loop = list(alone(turns[0]))
    by_tolerance(loop[0], backend, given.device)
    synchronise(given.device)
    start = time.perf_counter()
    close = sum(by_tolerance(case, backend, given.device) for case in loop)
    synchronise(given.device)
    by_hand = time.perf_counter() - start
    rows = [r.num_rows for case in turns for r in case.requests]
    prefix = [r.prefix_len for case in turns for r in case.requests]
    return {
        "backend": name,
        "trees": trees,
        "trees_a_minute": trees / spent * 60,
        "allclose_trees_a_minute": len(loop) / by_hand * 60,
        "allclose_agreed": close,
        "rows_p50": statistics.median(rows),
        "rows_p90": statistics.quantiles(rows, n=10)[-1],
        "prefix_p50": statistics.median(prefix),
        "prefix_p90": statistics.quantiles(prefix, n=10)[-1],
        "oracle_share": oracle / spent,
        "backend_share": apart.seconds / spent,
        "oracle_us_a_tree": oracle / trees * 1e6,
        "backend_host_us_a_tree": apart.host / trees * 1e6,
        "backend_us_a_tree": apart.seconds / trees * 1e6,
        "own_us_a_tree": (spent - oracle - apart.seconds) / trees * 1e6,
        "own_waits_a_check": len(waits),
        "margin": max(run.result.margin or 0.0 for run in runs),
        "shapes": shapes,
    }


def alone(case: VerifyCase) -> Iterator[VerifyCase]:
    """Each request of a case by itself."""
    for request in case.requests:
        page = case.layout.page_size
        pages = pages_of([request.prefix_len + len(request.tree)], page, 0, 0)
        yield VerifyCase(
            requests=(request,), shape=case.shape, mask=case.mask, seed=case.seed,
            layout=KVLayout(page_size=page, num_slots=pages * page, order="shuffled"),
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backends", nargs="*", default=["flex-attention"], metavar="BACKEND")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=20.0, help="at most so long a backend")
    parser.add_argument("--cases", type=int, default=24, help="at most so many a shape")
    parser.add_argument("--requests", type=int, default=128, help="trees in one launch")
    parser.add_argument("--rows", type=int, default=64, help="most rows of a tree")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--page", type=int, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.dtype, given.page = given.dtype or ["bfloat16"], given.page or [16]
    for name in given.backends:
        found = measure(name, given)
        if given.json:
            print(json.dumps(found), flush=True)
            continue
        print(name)
        for key, value in found.items():
            if key != "backend":
                print(
                    f"  {key:24} {value:.4g}" if isinstance(value, float) else f"  {key:24} {value}"
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
