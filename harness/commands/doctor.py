"""`treeproof doctor`: is this machine able to run treeproof? One finding a line, with what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from treeproof.commands.exit_codes import CLEAN, USAGE

TESTED_HYPOTHESIS = "6.170"
"""What is drawn from a seed rests on interfaces of Hypothesis that may change between releases."""


@click.command()
def doctor() -> int:
    """Say whether this machine is ready, and what to do.

    \b
    treeproof doctor

    Exit code 0: it can; 2: it cannot.
    """
    from treeproof.reports.console import open_console, prose, write

    found = examine(Path.cwd())
    lines = []
    for finding in found:
        mark = "ok" if finding.ok else "NO"
        lines.append(prose(f"{mark}  {finding.name:<10}  {finding.found}"))
        lines += [prose(f"{'':16}{finding.advice}")] if finding.advice else []
    write(open_console(), lines)
    return CLEAN if all(finding.ok for finding in found) else USAGE


@dataclass(frozen=True)
class Finding:
    """`advice` is empty where there is nothing to do; `ok` False means treeproof cannot run."""

    name: str
    found: str
    advice: str = ""
    ok: bool = True


def examine(folder: Path) -> list[Finding]:
    """Everything treeproof needs, seen from `folder`. Imports torch."""
    return [
        _python(),
        *_torch(),
        _triton(),
        _hypothesis(),
        _folder(folder),
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


def _torch() -> list[Finding]:
    try:
        import torch
    except Exception as error:  # a broken install fails in many ways, a missing library among them
        advice = "pip install torch (2.5 or newer)"
        return [Finding("torch", f"does not import: {error}", advice, ok=False)]
    if not torch.cuda.is_available():
        advice = (
            "runs on the CPU; for --device cuda install a CUDA build of torch"
            if (torch.version.cuda is None)
            else "torch is a CUDA build but sees no GPU: look at nvidia-smi and the driver"
        )
        return [Finding("torch", torch.__version__), Finding("device", "cpu", advice)]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(names))
    return [Finding("torch", torch.__version__), Finding("device", f"cpu, {devices}")]


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


def _workers() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    advice = "" if (cores or 1) > 1 else "one core: expect `treeproof check` to take twice as long"
    return Finding("workers", f"{cores or 1} (one a core; -n sets it)", advice)
