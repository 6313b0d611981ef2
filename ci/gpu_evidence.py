"""All that is worth doing on a GPU machine in a few minutes, and a table of what was seen.

    python ci/gpu_evidence.py --out FOLDER [--minutes 8] [--trees SHAPES.json] [BACKEND...]

Four things: backends are checked on drawn cases of the gpu profile, several at once as most of the
time goes into compiling; the same on published tree shapes, where a file of them is given; trees a
minute through the attention checks, one backend at a time; the oracle against its roofline. Writes
`evidence.json` and `evidence.md` into the folder, and the runs themselves below it. What was begun and
did not end in time is said so, and counts as nothing. Exits 1 where a backend violates an identity that
its ledger of known failures does not tolerate.
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
    "sglang-merge", "sglang-select",
)  # fmt: skip
MEASURED = (*OURS, "fa3-page-table", "fa3-cascade", "fa4-page-table", "fa4-cascade", "torch-varlen-cascade", "sglang-extend")  # fmt: skip
"""Backends whose trees a minute are measured."""
WITH_TREES = (*OURS, "fa3-page-table", "fa4-page-table", "flex-attention")


def treeproof_check(arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Exit code and output; None: it did not end in time."""
    command = [sys.executable, "-m", "treeproof", "check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else ""
    return done.returncode, done.stdout + done.stderr


def checked(
    name: str, folder: Path, given: argparse.Namespace, trees: Path | None
) -> dict[str, Any]:
    """One backend on drawn cases, or on the shapes of a file."""
    folder = folder / ("trees" if trees else "drawn") / name
    arguments = [name, "--device", "cuda", "--profile", "gpu", "--seed", str(given.seed), "-n", "1"]
    arguments += ["--run-dir", str(folder), "--time", f"{given.check_seconds}s"]
    arguments += ["--launch-timeout", "180s"]
    if trees:
        arguments += ["--trees", str(trees), "--prefix", "63", "--prefix", "1000"]
    else:
        arguments += ["--examples", str(given.examples)]
    if given.ledger:
        arguments += ["--ledger", str(given.ledger)]
    start = time.perf_counter()
    code, said = treeproof_check(arguments, given.check_seconds + 120)
    found: dict[str, Any] = {
        "backend": name, "exit": code, "wall_s": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    (folder.parent / f"{name}.txt").write_text(said)
    if code is None or not (folder / "meta.json").exists():
        return {**found, "state": "did not end in time" if code is None else said.strip()[-400:]}
    return {**found, **figures(Run.read(folder), name)}


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


def throughput(name: str) -> dict[str, Any]:
    code, said = bench(
        "throughput.py", name, "--seconds", "4", "--cases", "8", "--json", seconds=90
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
        "hypothesis",
    ):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"cuda": torch.version.cuda or "none"}


def cell_of(counts: dict[str, int]) -> str:
    said = [str(counts["pass"])] if counts["pass"] else []
    said += [f"**{counts['fail']} failed**"] if counts["fail"] else []
    said += [f"{counts['known']} known"] if counts.get("known") else []
    return ", ".join(said) or "–"


def markdown(evidence: dict[str, Any]) -> str:
    """The tables, for people."""
    columns = (*IDENTITIES, "output", "contract")
    lines = [
        f"# Seen on {evidence['device']}, {evidence['date']}",
        "",
        ", ".join(f"{name} {version}" for name, version in evidence["versions"].items()),
        "",
        f"Seed {evidence['seed']}, profile gpu; {evidence['wall_s']:.0f} s in all. A cell counts verdicts of "
        "both kinds of evidence that passed, that failed, and that failed as docs/findings.md says; a dash "
        "is no verdict.",
        "",
    ]
    for title, part in (
        ("Drawn cases", "drawn"),
        ("Published tree shapes, prefix 63 and 1,000", "trees"),
    ):
        if not evidence[part]:
            continue
        lines += [
            f"## {title}", "",
            f"| backend | {' | '.join(columns)} | checks | trees | rows p50/p90 | prefix p50/p90 | margin |",
            "|---" * (len(columns) + 6) + "|",
        ]  # fmt: skip
        for one in evidence[part]:
            if one.get("state") != "checked":
                reason = str(one.get("state", "")).replace("|", "/").replace("\n", " ")
                lines.append(f"| {one['backend']} | {reason} |" + " |" * (len(columns) + 4))
                continue
            cells = [cell_of(one["cells"][column]) for column in columns]
            sizes = [
                f"{one[what]['p50']:.0f} / {one[what]['p90']:.0f}" for what in ("rows", "prefix")
            ]
            margin = ", ".join(f"{k} {v}" for k, v in one["margins"].items())
            lines.append(
                f"| {one['backend']} | {' | '.join(cells)} | {one['checks']} | {one['trees']} | "
                f"{' | '.join(sizes)} | {margin or '–'} |"
            )
        lines.append("")
    failing = [one for part in ("drawn", "trees") for one in evidence[part] if one.get("failures")]
    if failing:
        lines += ["## What failed", ""]
        for one in failing:
            for failure in one["failures"]:
                lines.append(
                    f"- `{one['backend']}` {failure['identity']} {failure['kind']}: {failure['message']}; "
                    f"likely cause: {failure['cause'] or 'unknown'}"
                )
        lines.append("")
    lines += ["## Which kernels ran", ""]
    lines += [f"- `{one['backend']}`: " + ", ".join(f"`{k}`" for k in one["kernels"]) for one in evidence["drawn"] if one.get("kernels")]  # fmt: skip
    lines += [
        "", "## Trees a minute, without compilation", "",
        "| backend | trees a minute | allclose loop | times | rows p50/p90 | prefix p50/p90 | oracle | kernels | treeproof, µs a tree |",
        "|---" * 9 + "|",
    ]  # fmt: skip
    for one in evidence["throughput"]:
        if "trees_a_minute" not in one:
            reason = (
                str(one.get("state") or one.get("refused")).replace("|", "/").replace("\n", " ")
            )
            lines.append(f"| {one['backend']} | {reason} |" + " |" * 7)
            continue
        lines.append(
            f"| {one['backend']} | {one['trees_a_minute']:,.0f} | {one['allclose_trees_a_minute']:,.0f} | "
            f"{one['trees_a_minute'] / one['allclose_trees_a_minute']:.0f} | "
            f"{one['rows_p50']:.0f} / {one['rows_p90']:.0f} | {one['prefix_p50']:.0f} / {one['prefix_p90']:.0f} | "
            f"{one['oracle_share']:.0%} | {one['backend_share']:.0%} | {one['own_us_a_tree']:.0f} |"
        )
    lines += ["", "## The oracle", "", "```", evidence["roofline"].strip(), "```", ""]
    return "\n".join(lines)


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
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument(
        "--onto",
        type=Path,
        help="an evidence.json whose drawn cases of these backends are seen anew",
    )
    given = parser.parse_args()
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
        return given.minutes * 60 - (time.perf_counter() - start)

    if again is None:
        evidence["roofline"] = bench("oracle_roofline.py", seconds=60)[1]
    for name in MEASURED:
        if name in names and left() > 240 and again is None:
            evidence["throughput"].append(throughput(name))
            print(f"measured {name}", flush=True)
            save()
    jobs = [(name, None) for name in names]
    if given.trees and again is None:
        jobs += [(name, given.trees) for name in WITH_TREES if name in names]
    with ThreadPoolExecutor(given.at_once) as pool:
        waiting = [
            (trees, pool.submit(checked, name, given.out, given, trees)) for name, trees in jobs
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
    return int(
        any(one.get("exit") in (1, 4) for part in ("drawn", "trees") for one in evidence[part])
    )


if __name__ == "__main__":
    raise SystemExit(main())
