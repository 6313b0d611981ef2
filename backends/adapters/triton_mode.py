"""Whether Triton kernels are interpreted or compiled in this process: one or the other for good.

`@triton.jit` decides when it decorates, and so Triton decides for its own library when it is first
imported. A worker process on the CPU sets TRITON_INTERPRET=1 before anything imports Triton.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache

import torch

from treeproof.contract.backend import BackendUnavailable

_VARIABLE = "TRITON_INTERPRET"


def interpreted() -> bool:
    """True: in the interpreter, on CPU tensors. False: compiled, on CUDA tensors.

    As the environment says, and where it does not, by whether torch sees a CUDA device. Imports no
    Triton. Raises BackendUnavailable where Triton was imported too early for the interpreter.
    """
    said = os.environ.get(_VARIABLE, "")
    wanted = said.lower() in {"1", "true", "yes", "on"} if said else not _sees_cuda()
    if wanted and sys.modules.get("triton") and not _imported_interpreted():
        raise BackendUnavailable(
            f"triton was imported without {_VARIABLE}=1, and kernels do not run on the CPU without "
            "it: set it before anything imports triton, or check in a worker process"
        )
    return wanted


@cache
def _sees_cuda() -> bool:
    """Asked once: the answer stays, and every launch asks."""
    return torch.cuda.is_available()


def import_triton() -> None:
    """Import Triton in the mode that `interpreted` tells."""
    if interpreted():
        os.environ[_VARIABLE] = "1"
    importlib.import_module("triton")


def _imported_interpreted() -> bool:
    """Triton's own library functions are wrapped in the way that was chosen at its import."""
    cdiv = importlib.import_module("triton.language").cdiv
    return type(cdiv).__name__ == "InterpretedFunction"
