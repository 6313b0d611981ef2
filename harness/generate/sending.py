"""Numbers of the host on their way to a device, which nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch
    from torch import Tensor


def sent(numbers: npt.ArrayLike, device: str | torch.device) -> Tensor:
    """A tensor of its own.

    Out of pinned memory where the device is another: out of any other, more than 64 KiB wait until
    the device has done all that was asked of it before.
    """
    import torch

    made = torch.tensor(numbers)
    if torch.device(device).type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)
