"""Trees a minute through the attention checks, beside an `allclose` loop over the same kernel.

    python ci/bench/throughput.py [BACKEND...] [--device cuda] [--seconds 20] [--requests 64]

A tree is one distinct request checked with all probes of attention: bound, writes, poison,
tomography, checksum and chorus. Many requests go in one launch. The loop beside it checks one tree
a launch against a dense reference in float32, with a tolerance: what people write by hand. Import,
compilation and warm-up cases of each shape stand apart. Shares are of the wall time: the oracle, the
backend (its build, and its launches as timed on the device); the rest is what treeproof itself takes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.registry import Backend, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.prepared import prepare
from treeproof.generate.cases import pages_of
from treeproof.generate.orders import row_of_node
from treeproof.generate.topologies import TOKEN_LAWS, TOPOLOGIES, grow, tokens_of
from treeproof.properties.contract import valid_built
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import launch

PREFIXES = (512, 4096)
PROBES = frozenset({"random", "poison", "tomography", "checksum", "chorus", "spike"})
COLUMNS = frozenset({"visibility", "kv", "output", "contract"})


@dataclass(frozen=True)
class Shape:
    """What is compiled for: one head layout and page size, no window."""

    dtype: str
    page_size: int


def drawn_trees(count: int, run: int, most: int) -> list[CandidateTree]:
    """Of all topologies in turn, with 8 to `most` rows."""
    rng, names, found = random.Random(run), list(TOPOLOGIES), []
    for i in range(count):
        salt = rng.getrandbits(32)
        parents = grow(names[i % len(names)], rng.randint(8, most), rng.randint(1, 9), salt)
        found.append(CandidateTree(tokens_of(parents, TOKEN_LAWS[0], salt), parents))
    return found


def cases(run: int, requests: int, shape: Shape, rows: int, order: str) -> Iterator[VerifyCase]:
    """Without end; prefixes alternate."""
    number = 0
    while True:
        chosen = drawn_trees(requests, run * 100_003 + number, rows)
        lengths = [PREFIXES[i % len(PREFIXES)] for i in range(requests)]
        columns = [p + len(t) for p, t in zip(lengths, chosen, strict=True)]
        pages = pages_of(columns, shape.page_size, 0, 0)
        yield VerifyCase(
            requests=tuple(
                Request(tree=tree, row_of_node=row_of_node(tree, order, number), prefix_len=length)
                for tree, length in zip(chosen, lengths, strict=True)
            ),
            shape=AttentionShape(
                num_q_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128, dtype=shape.dtype
            ),
            layout=KVLayout(
                page_size=shape.page_size, num_slots=pages * shape.page_size, order="shuffled"
            ),
            mask=MaskLayout(mode=MaskMode.QLEN_ONLY if number % 2 else MaskMode.FULL_MASK),
            seed=number + 1,
        )
        number += 1


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


class Timed:
    """A backend whose launches of attend are timed on the device."""

    def __init__(self, backend: Backend, device: str) -> None:
        self.seconds, self._events, self._device = 0.0, list[tuple[Any, Any]](), device
        self.backend = with_fields(backend, make=lambda: self._wrap(backend.make()))

    def _wrap(self, instance: Any) -> Any:
        attend = instance.attend

        def timed(*arguments: Any) -> Any:
            if self._device == "cpu":
                start = time.perf_counter()
                result = attend(*arguments)
                self.seconds += time.perf_counter() - start
                return result
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = attend(*arguments)
            end.record()
            self._events.append((begin, end))
            return result

        instance.attend = timed
        return instance

    def settle(self) -> None:
        """After the device has come to rest."""
        self.seconds += sum(begin.elapsed_time(end) / 1e3 for begin, end in self._events)
        self._events.clear()


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def measure(name: str, given: argparse.Namespace) -> dict[str, object]:
    plain = load(name)
    timed = Timed(plain, given.device)
    backend = timed.backend
    shapes = [Shape(dtype, page) for dtype in given.dtype for page in given.page]
    order = "breadth-first"
    options = CheckOptions(
        device=given.device, profile="gpu", identities=COLUMNS, evidence=frozenset({"measured"}),
        probes=PROBES,
    )  # fmt: skip
    able = []
    for shape in shapes:
        stream = cases(9, given.requests, shape, given.rows, order)
        for case in (next(stream), next(stream)):  # one of either mask
            refused = backend.capabilities.refusal(case, given.device)
            if refused is None:
                if shape not in able:
                    able.append(shape)
                warm = check_case(case, backend, options)
                assert not warm.failures, warm.failures[0].message
    if not able:
        return {"backend": name, "refused": refused}
    timed.settle()
    timed.seconds = 0.0
    streams = [cases(given.seed, given.requests, shape, given.rows, order) for shape in able]
    drawn = [
        list(
            islice(
                (c for c in stream if plain.capabilities.refusal(c, given.device) is None),
                given.cases,
            )
        )
        for stream in streams
    ]
    checked, rows, prefix, margin = 0, [], [], 0.0
    parts: dict[str, float] = {}
    spent, turn = 0.0, 0
    while spent < given.seconds and turn < given.cases * len(able):
        case = drawn[turn % len(able)][turn // len(able)]
        turn += 1
        synchronise(given.device)
        start = time.perf_counter()
        result = check_case(case, backend, options)
        synchronise(given.device)
        spent += time.perf_counter() - start
        timed.settle()
        assert not result.failures, result.failures[0].message
        assert {c.status for c in result.cells if c.evidence == "measured"} <= {
            "pass",
            "not-checked",
        }
        checked += len(case.requests)
        rows += [r.num_rows for r in case.requests]
        prefix += [r.prefix_len for r in case.requests]
        margin = max(margin, result.margin or 0.0)
        for part, seconds in result.seconds.items():
            parts[part] = parts.get(part, 0.0) + seconds
    loop = [one for case in drawn[0][:1] for one in alone(case)]
    by_tolerance(loop[0], plain, given.device)
    synchronise(given.device)
    start = time.perf_counter()
    close = sum(by_tolerance(case, plain, given.device) for case in loop)
    synchronise(given.device)
    by_hand = time.perf_counter() - start
    kernels = timed.seconds + parts.get("build", 0.0)
    own = spent - parts.get("oracle", 0.0) - kernels
    return {
        "backend": name,
        "trees": checked,
        "trees_a_minute": checked / spent * 60,
        "allclose_trees_a_minute": len(loop) / by_hand * 60,
        "allclose_agreed": close,
        "rows_p50": statistics.median(rows),
        "rows_p90": statistics.quantiles(rows, n=10)[-1],
        "prefix_p50": statistics.median(prefix),
        "prefix_p90": statistics.quantiles(prefix, n=10)[-1],
        "oracle_share": parts.get("oracle", 0.0) / spent,
        "backend_share": kernels / spent,
        "own_us_a_tree": own / checked * 1e6,
        "margin": margin,
        "shapes": [f"{s.dtype}, pages of {s.page_size}" for s in able],
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
    parser.add_argument("--requests", type=int, default=64, help="trees in one launch")
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
