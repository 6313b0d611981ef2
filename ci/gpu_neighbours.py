"""Bad neighbours on a GPU: each is found and blamed alone, and right backends are judged as if it were not there.

    python ci/gpu_neighbours.py [--out FOLDER] [--device cuda] [--no-sanitize]

The backends of `bad_kernels.py` read out of bounds, write into a neighbour's slot, never end, fail an
assertion, kill their process or keep memory; `neighbours.py` says what must come of them. Then the kernels
that read out of bounds, one of which no device notices, are replayed under NVIDIA's compute-sanitizer, which must
name them. Takes two minutes. Writes `neighbours.json` and the runs into the folder.

Exits 1 where anything is not as it must be, and 3 where a check could not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from neighbours import Beside, Expected, environment
from neighbours import wrong as wrong_beside

from treeproof.engine.sanitizer import sanitizer
from treeproof.engine.summary import Run

KERNELS = Path(__file__).resolve().parent / "bad_kernels.py"
RIGHT = ("triton-topology", "triton-cascade")
SECONDS = {"without": 150.0, "with": 240.0}
"""Until a check is given up; they take a minute each."""
HANGS = {"without": 90.0, "with": 10.0}
"""In the first check kernels are compiled."""
SANITIZED_SECONDS = 150.0
EXAMINED = ("reads-beyond", "reads-far")
"""Replayed under compute-sanitizer, which must name the kernel of each."""

BROKEN = Expected("contract", "raises", "CUDA")
"""What a device that found the fault says: an illegal address, an assertion."""
ANYWHERE = {
    "reads-beyond": Expected("output", "outside-bound"),
    "writes-neighbour": Expected("kv", "written-elsewhere"),
    "spins": Expected("contract", "hang", "no progress"),
    "kills-its-process": Expected("contract", "crash", "SIGKILL"),
}
BAD = {
    "cuda": {
        "reads-far": BROKEN,
        "asserts": BROKEN,
        "asserts-in-triton": BROKEN,
        **ANYWHERE,
        "keeps-outputs": Expected("contract", "leaks-memory", "device memory from torch"),
        "keeps-from-the-driver": Expected("contract", "leaks-memory", "device memory beside torch"),
    },
    "cpu": {
        "reads-far": Expected("contract", "crash", "SIG"),
        "asserts": Expected("contract", "raises"),
        **ANYWHERE,
        "keeps-outputs": Expected("contract", "leaks-memory", "memory from malloc"),
    },
}
"""By device; on the CPU Triton interprets, and knows no assertions."""


def examined(run: Run, backend: str, *, folder: Path, device: str) -> dict[str, Any]:
    """The kept case of a bad neighbour, replayed under compute-sanitizer."""
    expected = BAD[device][backend]
    case = run.folder.reproducer_path(backend, expected.identity, expected.kind)
    words = ["replay", str(case), "--backend", f"{KERNELS}:{backend}", "--sanitize"]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "treeproof", *words], capture_output=True, text=True,
            timeout=SANITIZED_SECONDS, check=False, cwd=folder, env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"backend": backend, "said": f"did not end in {SANITIZED_SECONDS:g} s"}
    seconds = round(time.perf_counter() - start, 1)
    said = done.stdout + done.stderr
    (folder / f"sanitized-{backend}.txt").write_text(said)
    return {"backend": backend, "exit": done.returncode, "seconds": seconds, "said": said}


def tried(folder: Path, device: str, *, sanitize: bool) -> dict[str, Any]:
    options = ("--device", device, "--dtype", "float16")
    beside = Beside(RIGHT, KERNELS, BAD[device], options, SECONDS, HANGS)
    result, run = beside.tried(folder)
    if run is None or not sanitize:
        return result
    if sanitizer() is None:
        return {**result, "sanitized": "there is no compute-sanitizer here"}
    start = time.perf_counter()
    with ThreadPoolExecutor(len(EXAMINED)) as threads:
        examine = partial(examined, run, folder=folder, device=device)
        result["sanitized"] = list(threads.map(examine, EXAMINED))
    result["seconds"]["sanitized"] = round(time.perf_counter() - start, 1)
    return result


def wrong(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    said, sanitized = wrong_beside(result), result.get("sanitized")
    for one in sanitized if isinstance(sanitized, list) else ():
        if "Invalid __global__ read" not in named(one) or "in kernel blend" not in named(one):
            said.append(f"{one['backend']}: compute-sanitizer does not name its kernel")
    return said


def named(one: dict[str, Any]) -> str:
    """What a replay says that compute-sanitizer found, up to the size of the case."""
    _, found, said = one["said"].partition("compute-sanitizer: ")
    return found + " ".join(said.partition("  case of ")[0].split())


def shown(result: dict[str, Any]) -> str:
    if result["state"] != "tried":
        return f"{result['state']}: {result['said']}"
    lines = [
        f"{one['backend']}: {'intact' if one['intact'] else 'NOT INTACT'}, {one['checks']} checks"
        for one in result["right"]
    ]
    for one in result["bad"]:
        mark = "✗" if one["wrong"] else "✓"
        lines.append(f"{mark} {one['backend']}: {', '.join(one['found']) or 'nothing found'}")
        lines += [f"    {one['says'][:200]}"] if one["says"] else []
    sanitized = result.get("sanitized")
    if isinstance(sanitized, list):
        lines += [f"{one['backend']}: {named(one) or one['said'][-300:]}" for one in sanitized]
    elif sanitized:
        lines.append(sanitized)
    lines += [f"wrong: {text}" for text in wrong(result)]
    return "\n".join([*lines, f"seconds: {result['seconds']}"])


def main() -> int:
    parser = argparse.ArgumentParser(description="See the module's text.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--no-sanitize", action="store_true")
    given = parser.parse_args()
    folder = (given.out or Path(tempfile.mkdtemp(prefix="neighbours-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    sanitize = not given.no_sanitize and given.device == "cuda"
    result = tried(folder, given.device, sanitize=sanitize)
    (folder / "neighbours.json").write_text(json.dumps(result, indent=1) + "\n")
    print(shown(result))
    if result["state"] != "tried":
        return 3
    return 1 if wrong(result) else 0


if __name__ == "__main__":
    raise SystemExit(main())
