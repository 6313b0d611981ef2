"""A GPU for each process of pytest-xdist, before torch is there to see them all."""

from __future__ import annotations

import os
import sys

from treeproof.engine.gpus import ANY, VISIBLE, pins


def take_gpu(device: str, worker: str) -> str:
    """Hide from the process `worker`, such as gw3, all GPUs of `device` but its own.

    Returns what is to be said of it: where there are more processes than GPUs, whose it is as well; else
    nothing. Raises GpuError where a GPU is not there.
    """
    number, found = int(worker.removeprefix("gw")), pins(device)
    gpu = found[number % len(found)]
    if gpu == ANY:
        return ""
    if _torch_has_begun():
        return f"{worker} sees every GPU: CUDA was in use before pytest had its plug-ins"
    os.environ[VISIBLE] = gpu
    if number < len(found):
        return ""
    return (
        f"{worker} and gw{number % len(found)} are both on GPU {gpu}: there are {len(found)}, "
        "and a process for each is as many as -n should be"
    )


def _torch_has_begun() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
