"""What cutting a run into shards costs, and how evenly they are cut.

    python ci/bench/shards.py [BACKEND...] [--shards 2] [--profile ci] [--examples 432]

Runs the whole, then its shards one after another, each with one worker. Seconds are those of the processor,
start and imports included: other processes do not count. Exits 1 where the shards together take more than
`--at-most` times the whole, or where their union differs from it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from treeproof.engine.merge import merge
from treeproof.engine.summary import Run


def checked(given: argparse.Namespace, folder: Path, *more: str) -> tuple[Run, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "treeproof",
        "check",
        *given.backends,
        "-n",
        "1",
        "--no-reduce",
    ]
    command += ["--profile", given.profile, "--examples", str(given.examples)]
    command += ["--run-dir", str(folder), *more]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=folder.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run.read(folder), seconds


def verdicts(run: Run) -> set[tuple[object, ...]]:
    return {(c.case, c.backend, frozenset(c.cells)) for c in run.checks}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backends", nargs="*", default=["page-table"], metavar="BACKEND")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--profile", default="ci")
    parser.add_argument("--examples", type=int, default=432)
    parser.add_argument("--at-most", type=float, default=1.03)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, alone = checked(given, folder / "whole")
        parts, taken = [], []
        for i in range(1, given.shards + 1):
            part, seconds = checked(given, folder / f"part-{i}", "--shard", f"{i}/{given.shards}")
            parts.append(part)
            taken.append(seconds)
        union = merge(parts, folder / "union").run
        same = verdicts(union) == verdicts(whole)
    ratio, even = sum(taken) / alone, max(taken) / (sum(taken) / len(taken))
    print(
        f"whole {alone:.1f} s; {given.shards} shards {' '.join(f'{t:.1f}' for t in taken)} s of the "
        f"processor: {ratio:.3f} times the whole, the longest {even:.2f} times the mean; "
        f"{len(whole.checks)} checks, verdicts {'the same' if same else 'NOT THE SAME'}"
    )
    return int(ratio > given.at_most or not same)


if __name__ == "__main__":
    raise SystemExit(main())
