"""Errors of a device that come to light in the host's code."""

from __future__ import annotations

import torch

from treeproof.properties.exception_text import words_of


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device had no more memory to give. What a kernel asks of a chip is another matter."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = ("CUDA error: out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(words in words_of(error) for words in said)


def is_device_fault(error: RuntimeError) -> bool:
    """Whether the device, and not a host, found the fault: an illegal address, a failed assertion."""
    kind = getattr(torch, "AcceleratorError", None)  # torch 2.8 and later
    return (kind is not None and isinstance(error, kind)) or "CUDA error" in words_of(error)
