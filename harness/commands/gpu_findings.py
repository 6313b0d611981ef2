"""What `treeproof doctor` finds out about the GPUs: the driver, and whether each one runs a kernel."""

from __future__ import annotations

import shutil
import subprocess

from treeproof.commands.finding import Finding
from treeproof.engine.gpus import GpuError, pins

SMI_SECONDS = 20.0
"""nvidia-smi takes a second a GPU where no driver is kept loaded."""


def gpu_findings(device: str) -> list[Finding]:
    """The driver and every GPU that `device` stands for: `cuda` is all of them, `cuda:0,cuda:2` are two.

    Each launches a kernel: a driver too old for torch, or a torch that was not built for the GPU, shows
    there and nowhere before. Nothing is found wrong where `device` is `cpu`.
    """
    import torch

    wanted = device.startswith("cuda")
    if not torch.cuda.is_available():
        return [_no_gpu(wanted)]
    if device in ("cpu", "cuda"):
        return [_driver(), *(_gpu(i, wanted) for i in range(torch.cuda.device_count()))]
    return [_driver(), *map(_named, device.split(","))]


def _named(device: str) -> Finding:
    """One GPU by its place, or by its UUID, by which this process cannot choose any more."""
    import torch

    index, count = device.partition(":")[2], torch.cuda.device_count()
    if index.isdecimal():
        if int(index) < count:
            return _gpu(int(index), wanted=True)
        there = ", ".join(f"cuda:{i}" for i in range(count))
        return Finding("gpu", f"no {device}", f"there are {there}", ok=False)
    try:
        pins(device)
    except GpuError as error:
        return Finding("gpu", f"no {device}", str(error).partition(": ")[2], ok=False)
    return Finding("gpu", f"{device} is there; no kernel was run on it")


def _no_gpu(wanted: bool) -> Finding:
    import torch

    found = "none: " + _why_none() if wanted else "none"
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        advice = "install a build of torch for CUDA"
    else:
        advice = (
            "look at nvidia-smi: the driver has to be there, new enough for CUDA "
            f"{torch.version.cuda}, and CUDA_VISIBLE_DEVICES must not hide the GPU"
        )
    return Finding("gpu", found, advice if wanted else f"for --device cuda {advice}", not wanted)


def _why_none() -> str:
    """In torch's own words, which name a driver that is too old."""
    import torch

    try:
        torch.cuda.current_device()
    except Exception as error:  # RuntimeError, or AssertionError of a build without CUDA
        return str(error).splitlines()[0]
    return "torch sees none"


def _driver() -> Finding:
    """Of NVIDIA; with other GPUs there is no nvidia-smi, and that is no trouble."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return Finding("driver", "unknown: there is no nvidia-smi")
    try:
        done = subprocess.run(
            [smi, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=SMI_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("driver", f"unknown: {error}")
    versions = ", ".join(dict.fromkeys(done.stdout.split()))
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        return Finding("driver", f"unknown: {words[0] if words else 'nvidia-smi fails'}")
    return Finding("driver", versions)


def _gpu(index: int, wanted: bool) -> Finding:
    import torch

    device = f"cuda:{index}"
    try:
        about = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        total_of_ones = torch.ones(1024, device=device).add_(1).sum().item()
    except (
        Exception
    ) as error:  # what a driver says comes as RuntimeError, AcceleratorError and others
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Finding(
            "gpu", f"{device}: {words}", "no kernel runs there: driver or torch", not wanted
        )
    if total_of_ones != 2048:
        return Finding("gpu", f"{device} adds wrongly: {total_of_ones}", "", not wanted)
    size = f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    return Finding("gpu", f"{device} {about.name}, sm_{about.major}{about.minor}, {size}")
