"""Errors of a device that come to light in the host's code."""

from __future__ import annotations

import torch


def is_device_fault(error: RuntimeError) -> bool:
    """Whether the device, and not a host, found the fault: an illegal address, a failed assertion."""
    kind = getattr(torch, "AcceleratorError", None)  # torch 2.8 and later
    return (kind is not None and isinstance(error, kind)) or "CUDA error" in str(error)
