"""All that is worth doing on a GPU machine in a few minutes, and a table of what was seen.

    python ci/gpu_evidence.py --out FOLDER --ledger docs/findings.toml [--seconds 380]
                              [--trees SHAPES.json] [BACKEND...]

Four things: the oracle against its roofline; trees a minute through the attention checks, one backend at
a time; then, in all the time that is left, backends on drawn cases of the gpu profile, several at once as
most of the time goes into compiling, and on published tree shapes, where a file of them is given. Writes
`evidence.json` and `evidence.md` into the folder after each of them, and the runs themselves below it.

Nothing runs on after `--seconds`. A backend that was begun and did not end by then is told to stop, is
said so with what it had found, and counts as nothing; one that cannot run here says what it lacks. Exits 1
where a backend violates an identity that the ledger does not tolerate, 3 where one did not end.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch
from evidence_page import markdown

import treeproof
from treeproof.contract.failure import IDENTITIES
from treeproof.engine.completed import COMPLETED
from treeproof.engine.figures import margins_by_dtype
from treeproof.engine.summary import Run

HERE = Path(__file__).resolve().parent
OURS = tuple(
    f"triton-{name}" for name in ("direct-mask", "cascade", "page-table", "swa-window", "topology")
)
THEIRS = (
    "fa3-page-table", "fa3-cascade", "fa4-page-table", "fa4-cascade", "fa4-swa-window",
    "torch-varlen-page-table", "torch-varlen-cascade", "flex-attention", "flex-attention-compiled",
    "sdpa-direct-mask", "sglang-extend", "sglang-unified", "sglang-tree", "sglang-cuda-tree", 
    "sglang-draft", "sglang-merge", "sglang-select",
)  # fmt: skip
MEASURED = (*OURS, "fa3-page-table", "fa3-cascade", "fa4-page-table", "fa4-cascade", "sglang-extend")  # fmt: skip
"""Backends whose trees a minute are measured."""
LAST = 190
"""Seconds that are kept for checks: two backends one after the other in each place."""
OVER = 15.0
"""Seconds in which a check that is told to stop writes down what it found."""
HANGS = {"sglang-cuda-tree": 60}
"""Backends that are known to hang on a malformed selection, and after how long it is taken for that: it
takes half a minute to compile. They go first, and have so much longer."""
WITH_TREES = (*OURS, "fa3-page-table", "fa4-page-table", "flex-attention")


def treeproof_check(arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Exit code and output; None: it did not end in time, and was told to stop."""
    command = [sys.executable, "-m", "treeproof", "check", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            said, _ = process.communicate(timeout=max(0.0, seconds - OVER))
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                said, _ = process.communicate(timeout=OVER)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            return None, said
    return process.returncode, said


def checked(
    name: str, folder: Path, given: argparse.Namespace, trees: Path | None, until: float
) -> dict[str, Any]:
    """One backend on drawn cases, or on the shapes of a file; `until` of `time.perf_counter()`."""
    folder = folder / ("trees" if trees else "drawn") / name
    hang = HANGS.get(name, 0)
    left = until - time.perf_counter()
    if left < 2 * OVER:
        return {
            "backend": name,
            "exit": None,
            "wall_s": 0.0,
            "state": "not begun: no time was left",
        }
    seconds = min(given.check_seconds + hang, left - 2 * OVER)
    arguments = [name, "--device", "cuda", "--profile", "gpu", "--seed", str(given.seed), "-n", "1"]
    arguments += ["--run-dir", str(folder), "--time", f"{seconds:.0f}s"]
    arguments += ["--launch-timeout", f"{hang or 180}s"]
    if trees:
        arguments += ["--trees", str(trees), "--prefix", "63", "--prefix", "1000"]
    else:
        arguments += ["--examples", str(given.examples)]
    if given.ledger:
        arguments += ["--ledger", str(given.ledger)]
    start = time.perf_counter()
    code, said = treeproof_check(arguments, left)
    found: dict[str, Any] = {
        "backend": name, "exit": code, "wall_s": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    (folder.parent / f"{name}.txt").write_text(said)
    if not (folder / "meta.json").exists():
        return {**found, "state": said.strip()[-400:] or "did not begin in time"}
    run = Run.read(folder)
    return {**found, **(figures(run, name) if code is not None else cut_short(run, name))}


def cut_short(run: Run, name: str) -> dict[str, Any]:
    """What there was of a run that did not end; none of it counts."""
    until_then = [f"{run.completed_checks(name)} checks"]
    until_then += [f"{g.identity} {g.kind} in {g.checks}" for g in run.failures]
    return {"state": f"did not end in time; until then {', '.join(until_then)}"}


def figures(run: Run, name: str) -> dict[str, Any]:
    if name in run.unavailable:
        return {"state": f"unavailable: {run.unavailable[name]}"}
    done = {
        check.case for check in run.checks if any(cell.status in COMPLETED for cell in check.cells)
    }
    cases = [case for case in run.cases if case.case in done]
    rows = [r for case in cases for r in case.rows]
    prefixes = [p for case in cases for p in case.prefixes]
    tags = Counter(tag for case in cases for tag in case.tags)
    columns = (*IDENTITIES, "output", "contract")
    status = {
        column: {kind: run.matrix[name][column][kind] for kind in ("pass", "fail", "known", "tie")}
        for column in columns
    }
    return {
        "state": "checked" if cases else "no case that it takes",
        "checks": len(cases),
        "trees": len({tree for case in cases for tree in case.trees}) or len(rows),
        "rows": spread(rows),
        "prefix": spread(prefixes),
        "margins": {k: round(v, 3) for k, v in margins_by_dtype(run).items()},
        "cells": status,
        "classes": {
            tag: count for tag, count in sorted(tags.items())
            if tag.partition(":")[0] in ("page", "window", "dtype", "mask", "layout")
        },
        "kernels": [f"{kernel.shown} ({kernel.mode}, {kernel.on})" for kernel in run.kernels.get(name, ())],
        "failures": [
            {
                "identity": group.failure.identity, "kind": group.failure.kind,
                "cause": group.failure.cause, "message": group.failure.message,
            }
            for group in run.failures
        ],
    }  # fmt: skip


def spread(values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered), "p90": ordered[int(len(ordered) * 0.9)], "most": ordered[-1],
    }  # fmt: skip


def bench(script: str, *arguments: str, seconds: float) -> tuple[int | None, str]:
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "bench" / script), *arguments],
            capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def throughput(name: str, seconds: float) -> dict[str, Any]:
    if seconds < OVER:
        return {"backend": name, "state": "not begun: no time was left"}
    code, said = bench(
        "throughput.py",
        name,
        "--seconds",
        "4",
        "--cases",
        "8",
        "--json",
        seconds=min(90.0, seconds),
    )
    if code != 0:
        return {"backend": name, "state": said.strip()[-300:] or "did not end in time"}
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def versions() -> dict[str, str]:
    import importlib.metadata as metadata

    found = {"treeproof": treeproof.__version__, "python": platform.python_version()}
    for package in (
        "torch",
        "triton",
        "fa3-fwd",
        "flash-attn-4",
        "nvidia-cutlass-dsl",
        "sglang",
        "apache-tvm-ffi",
        "hypothesis",
    ):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"cuda": torch.version.cuda or "none"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backends", nargs="*", metavar="BACKEND")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--examples", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-seconds", type=int, default=75)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=380.0)
    parser.add_argument(
        "--onto",
        type=Path,
        help="an evidence.json whose drawn cases of these backends are seen anew",
    )
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU; treeproof doctor --device cuda says what to do")
    given.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    names = tuple(given.backends) or (*OURS, *THEIRS)
    evidence: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "date": date.today().isoformat(),
        "versions": versions(), "seed": given.seed, "drawn": [], "trees": [], "throughput": [],
        "roofline": "",
    }  # fmt: skip
    again = json.loads(given.onto.read_text()) if given.onto else None
    if again is not None:
        if again["versions"] != evidence["versions"] or again["device"] != evidence["device"]:
            parser.error(f"--onto: {given.onto} was seen on another device or with other versions")
        evidence = again
        evidence["drawn"] = [one for one in again["drawn"] if one["backend"] not in names]

    before = evidence.get("wall_s", 0.0)

    def save() -> None:
        evidence["wall_s"] = before + time.perf_counter() - start
        (given.out / "evidence.json").write_text(json.dumps(evidence, indent=1) + "\n")
        (given.out / "evidence.md").write_text(markdown(evidence))

    def left() -> float:
        return given.seconds - (time.perf_counter() - start)

    if again is None:
        evidence["roofline"] = bench("oracle_roofline.py", seconds=60)[1]
    for name in MEASURED:
        if name not in names or again is not None:
            continue
        evidence["throughput"].append(throughput(name, left() - LAST))
        print(f"measured {name}", flush=True)
        save()
    jobs: list[tuple[str, Path | None]] = [(name, None) for name in names]
    if given.trees and again is None:
        jobs += [(name, given.trees) for name in WITH_TREES if name in names]
    jobs.sort(key=lambda job: job[0] not in HANGS)
    with ThreadPoolExecutor(given.at_once) as pool:
        until = start + given.seconds
        waiting = [
            (trees, pool.submit(checked, name, given.out, given, trees, until))
            for name, trees in jobs
        ]
        for trees, job in waiting:
            found = job.result()
            evidence["trees" if trees else "drawn"].append(found)
            print(
                f"checked {found['backend']}: {found.get('state')}, exit {found['exit']}",
                flush=True,
            )
            save()
    evidence["drawn"].sort(key=lambda one: (*OURS, *THEIRS, one["backend"]).index(one["backend"]))
    save()
    exits = {one.get("exit") for part in ("drawn", "trees") for one in evidence[part]}
    return 1 if exits & {1, 4} else 3 * (None in exits)


if __name__ == "__main__":
    raise SystemExit(main())
