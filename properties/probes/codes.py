"""Distinct sign patterns for slots: far apart by construction, at any head dim.

The bits of a slot's number, whitened by a fixed pattern, are repeated over the lanes, so two slots
differ in at least `width // bits` lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)  # odd: multiplying permutes numbers modulo 2**bits


def bits_needed(num_slots: int) -> int:
    """Bits that tell the slots apart, and at least 4."""
    return max(4, (num_slots - 1).bit_length())


def sign_codes(
    num_slots: int,
    heads: int,
    width: int,
    salt: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(num_slots, heads, width) of +-1 in `dtype`; another head or salt gives another code.

    Slots whose codes are close under one salt are strangers under another, so that an average over
    neighbours in K is no code in V.
    """
    bits = bits_needed(num_slots)
    if width < bits:
        raise ValueError(f"{num_slots} slots need {bits} lanes, head dim is {width}")
    number = torch.arange(num_slots, dtype=torch.int64, device=device)[:, None]
    number = number + 0x3779 * torch.arange(heads, dtype=torch.int64, device=device)
    for turn in range(3):
        # Each step permutes the numbers below 2**bits; xor with the upper half breaks linearity.
        number = (number * _ODD[(turn + salt) % 3] + salt * 0x5851) % (1 << bits)
        number = number ^ (number >> (bits // 2))
    bit = (number[..., None] >> torch.arange(bits, device=device)) & 1
    turns = -(-width // bits)
    lane = torch.arange(turns * bits, device=device)
    flip = (lane * 0x2545F491 + salt) >> 3 & 1
    # Signs of a slot's bits, over and over, and of those of a lane.
    own, lanes = ((1 - 2 * b).to(dtype) for b in (bit, flip))
    return (own[..., None, :] * lanes.view(turns, bits)).flatten(2)[..., :width].contiguous()
