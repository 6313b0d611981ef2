"""Bad neighbours on a GPU: each is found and blamed alone, and right backends are judged as if it were not there.

    python ci/gpu_neighbours.py [--out FOLDER] [--device cuda] [--no-sanitize]

Two checks of the same two cases: of two right backends, and of these with the backends of `bad_kernels.py`
between them, which read out of bounds, write into a neighbour's slot, never end, fail an assertion, kill
their process or keep memory, all on one of the cases. Each must fail on that case alone, in its own way, and
leave the case on disk; the verdicts on the right ones must be those of the check without. Then the kernel
that reads behind its buffer, which no device notices, is replayed under NVIDIA's compute-sanitizer, which must
name it. Takes two minutes. Writes `neighbours.json` and the runs into the folder.

Exits 1 where anything is not as it must be, and 3 where a check could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from treeproof.contract.event import Checked
from treeproof.contract.wire import FileError
from treeproof.engine.sanitizer import sanitizer
from treeproof.engine.summary import Run

HERE = Path(__file__).resolve().parent
RIGHT = ("triton-topology", "triton-cascade")
TREE = [-1, 0, 0, 1, 1, 2, 4]
PREFIXES = (41, 6)
"""Of the case that brings the harm on, as `bad_kernels.HARMFUL`, and of one that does not."""
SEED = 156
"""Of a harmful case with two requests, that looks for memory, too."""
SECONDS = {"without": 90.0, "with": 110.0, "sanitized": 90.0}
HANGS = {"without": 90.0, "with": 10.0}
"""After how long a launch counts as hung: in the first check kernels are compiled."""
EXAMINED = ("reads-beyond", "reads-far")
"""Replayed under compute-sanitizer; it must name the kernel of the first."""

BROKEN = ("contract", "raises", "CUDA")
"""What a device that found the fault says: an illegal address, an assertion."""
CRASHED = ("contract", "crash", "SIG")


@dataclass(frozen=True)
class Expected:
    """Identity and kind of the failure that must be among those found, and words of its message."""

    on_cuda: tuple[str, str, str]
    on_cpu: tuple[str, str, str] | None = None
    """In Triton's interpreter, where it is another; None: nothing can be seen of it there."""

    def on(self, device: str) -> tuple[str, str, str]:
        found = self.on_cuda if device == "cuda" else self.on_cpu
        assert found is not None
        return found


def everywhere(identity: str, kind: str, words: str = "") -> Expected:
    return Expected((identity, kind, words), (identity, kind, words))


BAD = {
    "reads-far": Expected(BROKEN, CRASHED),
    "reads-beyond": everywhere("output", "outside-bound"),
    "writes-neighbour": everywhere("kv", "written-elsewhere"),
    "spins": everywhere("contract", "hang", "no progress"),
    "asserts": Expected(BROKEN, ("contract", "raises", "")),
    "asserts-in-triton": Expected(BROKEN),
    "kills-its-process": everywhere("contract", "crash", "SIGKILL"),
    "keeps-outputs": Expected(
        ("contract", "leaks-memory", "device memory from torch"),
        ("contract", "leaks-memory", "memory from malloc"),
    ),
    "keeps-from-the-driver": Expected(("contract", "leaks-memory", "device memory beside torch")),
}


def environment() -> dict[str, str]:
    """This one, for a process in another folder: none of `.treeproof` here is replayed."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = os.pathsep.join(str(Path(part).absolute()) for part in path if part)
    return {**os.environ, "PYTHONPATH": absolute}


def check(name: str, backends: list[str], folder: Path, device: str) -> tuple[Run | None, str]:
    """The run, or why there is none."""
    shapes = folder / "tree.json"
    shapes.write_text(json.dumps(TREE))
    command = [sys.executable, "-m", "treeproof", "check", *backends, "--device", device]
    command += ["--trees", str(shapes), "--dtype", "float16", "--seed", str(SEED), "-n", "1"]
    for prefix in PREFIXES:
        command += ["--prefix", str(prefix)]
    command += [
        "--launch-timeout",
        f"{HANGS[name]}s",
        "--no-reduce",
        "--run-dir",
        str(folder / name),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS[name], check=False,
            cwd=folder, env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"did not end in {SECONDS[name]:g} s"
    (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
    try:
        return Run.read(folder / name), f"exit code {done.returncode}"
    except FileError:
        return None, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"


def verdicts(run: Run, backend: str) -> dict[str, Any]:
    """Case to all that is said of it, but how long it took."""

    def said(check: Checked) -> Any:
        whole = run.whole(check)
        return [repr(cell) for cell in whole.cells], [repr(failure) for failure in whole.failures]

    return {check.case: said(check) for check in run.checks if check.backend == backend}


def harmful(run: Run) -> str:
    return next(case.case for case in run.cases if case.prefixes[0] == PREFIXES[0])


def found(run: Run, backend: str, expected: tuple[str, str, str]) -> dict[str, Any]:
    """What was seen of a bad neighbour, and what of it is not as it must be."""
    checks = [run.whole(check) for check in run.checks if check.backend == backend]
    blamed = [check.case for check in checks if check.failures]
    failures = [failure for check in checks for failure in check.failures]
    identity, kind, words = expected
    alike = [f for f in failures if f.key == (identity, kind) and words in f.message]
    kept = run.folder.reproducer_path(backend, identity, kind)
    wrong = []
    if not alike:
        wrong.append(f"not found as {identity} {kind} {words}".strip())
    if blamed != [harmful(run)]:
        wrong.append(f"blamed on cases {', '.join(blamed) or 'none'}, expected {harmful(run)}")
    if len(checks) != len(PREFIXES):
        wrong.append(f"judged on {len(checks)} cases, expected {len(PREFIXES)}")
    if not kept.exists():
        wrong.append("its case is not on disk")
    return {
        "backend": backend,
        "expected": f"{identity} {kind}",
        "found": sorted({f"{f.identity} {f.kind}" for f in failures}),
        "says": alike[0].message if alike else "",
        "blamed": blamed,
        "wrong": wrong,
    }


def examined(run: Run, backend: str, *, bad: Path, folder: Path, device: str) -> dict[str, Any]:
    """The kept case of a bad neighbour, replayed under compute-sanitizer."""
    identity, kind, _ = BAD[backend].on(device)
    case = run.folder.reproducer_path(backend, identity, kind)
    words = ["replay", str(case), "--backend", f"{bad}:{backend}", "--sanitize"]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "treeproof", *words], capture_output=True, text=True,
            timeout=SECONDS["sanitized"], check=False, cwd=folder, env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"backend": backend, "said": f"did not end in {SECONDS['sanitized']:g} s"}
    seconds = round(time.perf_counter() - start, 1)
    (folder / f"sanitized-{backend}.txt").write_text(done.stdout + done.stderr)
    return {"backend": backend, "exit": done.returncode, "seconds": seconds, "said": done.stdout}


def tried(folder: Path, device: str, *, sanitize: bool) -> dict[str, Any]:
    bad = HERE / "bad_kernels.py"
    first, last = RIGHT
    names = [name for name, expected in BAD.items() if device == "cuda" or expected.on_cpu]
    between = [f"{bad}:{name}" for name in names]
    start = time.perf_counter()
    alone, alone_said = check("without", [*RIGHT], folder, device)
    until = time.perf_counter()
    run, said = check("with", [first, *between, last], folder, device)
    end = time.perf_counter()
    result: dict[str, Any] = {
        "device": device,
        "seconds": {"without": round(until - start, 1), "with": round(end - until, 1)},
        "said": {"without": alone_said, "with": said},
        "state": "tried" if alone is not None and run is not None else "could not run",
    }  # fmt: skip
    if alone is None or run is None:
        return result
    result["right"] = [
        {
            "backend": name,
            "checks": alone.completed_checks(name),
            "failures": sum(len(c.failures) for c in alone.checks if c.backend == name),
            "intact": verdicts(alone, name) == verdicts(run, name),
        }
        for name in RIGHT
    ]
    result["bad"] = [found(run, name, BAD[name].on(device)) for name in names]
    result["losses"] = [f"{lost.backend}: {lost.how}" for lost in run.losses]
    if sanitize and sanitizer() is not None:
        with ThreadPoolExecutor(len(EXAMINED)) as threads:
            examine = partial(examined, run, bad=bad, folder=folder, device=device)
            result["sanitized"] = list(threads.map(examine, EXAMINED))
        result["seconds"]["sanitized"] = round(time.perf_counter() - end, 1)
    elif sanitize:
        result["sanitized"] = "there is no compute-sanitizer here"
    return result


def wrong(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    said = []
    for one in result["right"]:
        if one["checks"] != len(PREFIXES) or one["failures"]:
            said.append(
                f"{one['backend']} alone: {one['checks']} checks, {one['failures']} failures"
            )
        if not one["intact"]:
            said.append(f"{one['backend']}: other verdicts beside bad neighbours")
    said += [f"{one['backend']}: {text}" for one in result["bad"] for text in one["wrong"]]
    sanitized = result.get("sanitized")
    if isinstance(sanitized, list) and "read" not in named(sanitized[0]):
        said.append(f"{EXAMINED[0]}: compute-sanitizer does not name its kernel")
    return said


def named(one: dict[str, Any]) -> str:
    """The line of a replay that says what compute-sanitizer found."""
    lines = (line.strip() for line in one["said"].splitlines())
    return next((line for line in lines if line.startswith("compute-sanitizer:")), "")


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
    folder = given.out or Path(tempfile.mkdtemp(prefix="neighbours-"))
    folder.mkdir(parents=True, exist_ok=True)
    sanitize = not given.no_sanitize and given.device == "cuda"
    result = tried(folder.absolute(), given.device, sanitize=sanitize)
    (folder / "neighbours.json").write_text(json.dumps(result, indent=1) + "\n")
    print(shown(result))
    if result["state"] != "tried":
        return 3
    return 1 if wrong(result) else 0


if __name__ == "__main__":
    raise SystemExit(main())
