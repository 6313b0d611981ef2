"""What a fixed tolerance notices behind a long prefix, and what treeproof does.

    python ci/bench/long_prefix.py [--prefix 16 --prefix 32768 ...] [FAULT...]

Every planted fault of visibility, of a merge or of a window, on its smallest case in bfloat16, with
every prefix so much longer. Two columns: caught by the check that the fault names; out of
`allclose(2e-2)` on random data. Exits 1 where treeproof misses one.
"""

from __future__ import annotations

import argparse
import sys
import time

from treeproof.faults.catalog import FAULTS, named
from treeproof.faults.long import LONG
from treeproof.scoring.long_prefix import LENGTHS, Noticed, notice
from treeproof.scoring.pairs import pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--prefix", type=int, action="append", metavar="KEYS")
    asked = parser.parse_args()
    faults = named(tuple(asked.faults)) if asked.faults else [f for f in FAULTS if f.name in LONG]
    chosen = pairs(faults)
    print(f"{'prefix':>8}  {'faults':>6}  {'treeproof':>9}  {'allclose(2e-2)':>14}  {'seconds':>7}")
    found: list[Noticed] = []
    for prefix in asked.prefix or LENGTHS:
        start = time.perf_counter()
        now = [notice(pair, prefix) for pair in chosen]
        found += now
        caught, close = sum(n.caught for n in now), sum(n.by_tolerance for n in now)
        seconds = time.perf_counter() - start
        print(f"{prefix:>8}  {len(now):>6}  {caught:>9}  {close:>14}  {seconds:>7.0f}", flush=True)
    for one in found:
        if not one.caught:
            name = f"{one.pair.fault.name} in {one.pair.backend}"
            print(f"missed by treeproof: {name} behind {one.prefix} keys")
    farthest = max(n.prefix for n in found)
    seen = sorted(n.pair.fault.name for n in found if n.prefix == farthest and n.by_tolerance)
    print(f"noticed by allclose behind {farthest} keys: {', '.join(seen) or 'none'}")
    return int(any(not one.caught for one in found))


if __name__ == "__main__":
    sys.exit(main())
