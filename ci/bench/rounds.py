"""Scripts of many rounds: how fast they are served, and that all of them are plain decoding.

    python ci/bench/rounds.py                      runs of ten rounds a second, one core
    python ci/bench/rounds.py --generations 2000   drawn scripts until so many generations are done

The first serves one request over ten rounds, and the drawn scripts of a unit, on each backend; the
oracle runs once for all of them, as in a run. Seconds are those of the processor: other processes do not
count. The second exits with 1 where any token, page or cache is not what plain decoding makes it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.contract.shape import DTYPES
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.smallest import case, request
from treeproof.generate.script_units import BLOCK, ScriptUnit, draw_scripts

FIVE = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
TREE = (-1, 0, 0, 1, 2)
REPEATS = 5


def ten_rounds() -> VerifyCase:
    """One request, a tree of five nodes, every node accepted twice."""
    rounds = [Round(turns=(Turn(request=0, accept=i % len(TREE)),)) for i in range(10)]
    return case(
        request(TREE, 8), spare_pages=40, page_size=4, heads=(2, 2), head_dims=(16, 16),
        rotary=100.0, script=[Admit(request=0), Prefill(request=0), *rounds],
    )  # fmt: skip


def seconds_of(scripts: Sequence[VerifyCase], backend: str) -> float:
    """Processor seconds to serve them, the fastest of a few times."""
    found, options = load(backend), CheckOptions()
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        for script in scripts:
            checked = check_case(script, found, options)
            assert not checked.failures, checked.failures
        taken.append(time.process_time() - start)
    return min(taken)


def bench(backends: Sequence[str]) -> None:
    one, drawn = [ten_rounds()], draw_scripts(ScriptUnit("quick", 0, 0, BLOCK, rounds=10))
    start = time.process_time()
    for script in (*one, *drawn):
        check_case(script, load(backends[0]), CheckOptions())
    print(f"the first backend, oracle included: {time.process_time() - start:.2f} s for all")
    for name in backends:
        alone, many = seconds_of(one, name), seconds_of(drawn, name) / len(drawn)
        print(
            f"{name:12s}  one request {1 / alone:6.1f} runs of ten rounds a second; "
            f"drawn, one to three requests {1 / many:6.1f}"
        )


def scripts(seed: int, dtype: str | None) -> Iterator[VerifyCase]:
    block = 0
    while True:
        yield from draw_scripts(ScriptUnit("quick", seed, block, BLOCK, dtype=dtype))
        block += 1


def show(backends: Sequence[str], wanted: int, seed: int, dtype: str | None) -> int:
    """Serve drawn scripts until `wanted` generations of several rounds have come to their end."""
    total = {"requests": 0, "rounds": 0, "tokens": 0, "ties": 0}
    wrong, count, options = 0, 0, CheckOptions()
    for script in scripts(seed, dtype):
        if total["requests"] >= wanted:
            break
        count += 1
        for name in backends:
            checked: Checked = check_case(script, load(name), options)
            wrong += bool(checked.failures)
            for failure in checked.failures:
                print(f"{name}  {script.id}  {failure.identity} {failure.kind}: {failure.message}")
            if checked.generated is not None:
                for field in total:
                    total[field] += getattr(checked.generated, field)
    print(
        f"{total['requests']:,} generations of {count:,} scripts on {len(backends)} backends, seed "
        f"{seed}: {total['rounds']:,} rounds, {total['tokens']:,} tokens, of which {total['ties']} "
        f"differ from plain decoding where rounding leaves it open; {wrong} checks failed"
    )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--generations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("backends", nargs="*", default=FIVE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.generations:
        return show(given.backends, given.generations, given.seed, given.dtype)
    bench(given.backends)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
