"""`treeproof doctor`: is this machine able to run treeproof? One finding a line, with what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from treeproof.commands.exit_codes import CLEAN, USAGE
from treeproof.commands.finding import Finding
from treeproof.commands.gpu_findings import gpu_findings
from treeproof.config import read_value

TESTED_HYPOTHESIS = "6.170"
"""What is drawn from a seed rests on interfaces of Hypothesis that may change between releases."""

LEAST_FREE = 10**9
"""Bytes: what a long run with failures may leave in its folder."""


@click.command()
@click.option(
    "--device", default="cpu", metavar="DEVICE", help="Where backends are to run. Default cpu."
)
def doctor(device: str) -> int:
    """Say whether this machine is ready, and what to do.

    With --device cuda each GPU launches a kernel, and it is an error where there is none.

    \b
    treeproof doctor
    treeproof doctor --device cuda

    Exit code 0: it can; 2: it cannot.
    """
    from treeproof.reports.console import open_console, prose, write

    found = examine(Path.cwd(), read_value("device", device, "--device")["device"])
    lines = []
    for finding in found:
        mark = "ok" if finding.ok else "NO"
        lines.append(prose(f"{mark}  {finding.name:<10}  {finding.found}"))
        lines += [prose(f"{'':16}{finding.advice}")] if finding.advice else []
    write(open_console(), lines)
    return CLEAN if all(finding.ok for finding in found) else USAGE


def examine(folder: Path, device: str = "cpu") -> list[Finding]:
    """Everything treeproof needs, seen from `folder`, to run backends on `device`. Imports torch."""
    return [
        _python(),
        *_torch(device),
        _triton(),
        _hypothesis(),
        _folder(folder),
        _disk(folder),
        _workers(),
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return Finding("python", found, "" if ok else "install Python 3.11 or newer", ok)


def _torch(device: str) -> list[Finding]:
    try:
        import torch
    except Exception as error:  # a broken install fails in many ways, a missing library among them
        advice = "pip install torch (2.5 or newer)"
        return [Finding("torch", f"does not import: {error}", advice, ok=False)]
    cuda = torch.version.cuda
    built = f"{torch.__version__}, built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    return [Finding("torch", built), *gpu_findings(device)]


def _triton() -> Finding:
    found = _version("triton")
    if found is None:
        return Finding(
            "triton", "not installed", "only Triton backends need it: pip install triton"
        )
    mode = " (interpreter)" if os.environ.get("TRITON_INTERPRET") == "1" else ""
    return Finding("triton", found + mode)


def _hypothesis() -> Finding:
    found = _version("hypothesis")
    if found is None:
        return Finding("hypothesis", "not installed", "pip install 'hypothesis>=6.150'", ok=False)
    if found.split(".")[:2] == TESTED_HYPOTHESIS.split("."):
        return Finding("hypothesis", found)
    advice = f"tested with {TESTED_HYPOTHESIS}: the same seed may draw other cases there"
    return Finding("hypothesis", found, advice)


def _folder(folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Finding("folder", f"{folder} is writable")
    except OSError as error:
        advice = "runs are written below the current folder: cd elsewhere or give --run-dir"
        return Finding("folder", f"{folder}: {error.strerror or error}", advice, ok=False)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    enough = free >= LEAST_FREE
    advice = "" if enough else f"a run needs up to {LEAST_FREE / 1e9:g} GB in the current folder"
    return Finding("disk", f"{free / 1e9:,.1f} GB free", advice, enough)


def _workers() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    advice = "" if (cores or 1) > 1 else "one core: expect `treeproof check` to take twice as long"
    return Finding("workers", f"{cores or 1} (one a core; -n sets it)", advice)
