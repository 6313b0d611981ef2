"""What a slot of a cache holds, told from its bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from treeproof.diagnosis.evidence import STRANGE, partly
from treeproof.properties.probes.codes import sign_codes


def slot_codes(slots: int, heads: int, width: int, salt: int, device: torch.device) -> Tensor:
    """(slots, heads, width): every slot's own, in each half of the lanes too where these are enough.

    Eight values a lane, which every type that a cache may have holds exactly.
    """
    half = width // 2
    if 8**half < slots:
        return sign_codes(slots, heads, width, salt, device)
    number = torch.arange(slots, device=device)[:, None, None]
    lane = torch.arange(width, device=device)
    head = torch.arange(heads, device=device)[:, None]
    digit = (number // 8 ** (lane % half).clamp(max=12) + head + salt) % 8
    return torch.where(digit < 4, 2.0**digit, -(2.0 ** (digit - 4)))


def in_part(now: Tensor, before: Tensor, sources: Tensor) -> int:
    """`partly` of the source (n, heads, lanes) that some of the lanes or heads are from, where the
    others are as before; `STRANGE` where there is none."""
    for part in _parts(*now.shape):
        if not bool(part.all()) and bits(now[~part]) == bits(before[~part]):
            for i, source in enumerate(sources):
                if bits(source[part]) == bits(now[part]):
                    return partly(i)
    return STRANGE


def _parts(heads: int, lanes: int) -> Iterator[Tensor]:
    """(heads, lanes) bool: what is moved where a stride or a loop is cut short."""
    head, lane = torch.arange(heads)[:, None], torch.arange(lanes)[None]
    for part in (lane < lanes // 2, lane >= lanes // 2, head < 1, head >= 1, head < heads // 2):
        part = part.expand(heads, lanes)
        if bool(part.any()):
            yield part


def rows_by_bits(rows: Tensor) -> dict[bytes, int]:
    return {bits(row): flat for flat, row in enumerate(rows.cpu())}


def bits(t: Tensor) -> bytes:
    """Of a tensor on the CPU."""
    return t.contiguous().view(torch.uint8).numpy().tobytes()
