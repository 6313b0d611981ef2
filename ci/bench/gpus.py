"""What the GPUs of one host bring: the same run on one of them and on all.

    python ci/bench/gpus.py [BACKEND...] [--gpus 2] [--examples 216] [--at-least 1.8]

Runs on all GPUs first, which compiles what is to be compiled; then on one, then on all again, and compares
the seconds between the first verdict and the last. Exits 1 where all are less than `--at-least` times as fast
as one, or where verdicts differ.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from shards import verdicts

from treeproof.engine.summary import Run

OURS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")


def checked(given: argparse.Namespace, folder: Path, gpus: int) -> Run:
    command = [sys.executable, "-m", "treeproof", "check", *given.backends, "--profile", "gpu"]
    command += ["--device", ",".join(f"cuda:{i}" for i in range(gpus))]
    command += ["--examples", str(given.examples), "--no-reduce", "--run-dir", str(folder)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=folder.parent)
    return Run.read(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ours = [f"triton-{name}" for name in OURS]
    parser.add_argument("backends", nargs="*", default=ours, metavar="BACKEND")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--examples", type=int, default=216)
    parser.add_argument("--at-least", type=float, default=1.8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checked(given, folder / "compiling", given.gpus)
        one, every = checked(given, folder / "one", 1), checked(given, folder / "all", given.gpus)
        assert one.finished is not None
        assert every.finished is not None
        same = verdicts(one) == verdicts(every)
    ratio = one.finished.checking / every.finished.checking
    print(
        f"{len(one.checks)} checks: {one.finished.checking:.1f} s on one GPU, {every.finished.checking:.1f} s "
        f"on {given.gpus}: {ratio:.2f} times as fast; with start and imports {one.finished.seconds:.1f} and "
        f"{every.finished.seconds:.1f} s; verdicts {'the same' if same else 'NOT THE SAME'}"
    )
    return int(ratio < given.at_least or not same)


if __name__ == "__main__":
    raise SystemExit(main())
