"""Tree masks in the three layouts: how many cells there are, and which are set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from treeproof.backends.reference.tree import Bools, Ints
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates


def mask_offsets(mode: MaskMode, prefix_lens: Sequence[int], rows: Sequence[int]) -> list[int]:
    """(B+1) first cell (or item) of each request; the last entry is the number of defined cells.

    FULL_MASK has R x (P + R) cells a request, QLEN_ONLY R x R, and the bit-packed layout R items.
    """
    if mode is MaskMode.FULL_MASK:
        sizes = [r * (p + r) for p, r in zip(prefix_lens, rows, strict=True)]
    elif mode is MaskMode.QLEN_ONLY:
        sizes = [r * r for r in rows]
    else:
        sizes = list(rows)
    return [0, *accumulate(sizes)]


def packed_dtype(rows: int) -> torch.dtype:
    """Item type of a bit-packed mask row of `rows` columns. Raises ValueError above 32."""
    for most, dtype in ((8, torch.uint8), (16, torch.uint16), (32, torch.uint32)):
        if rows <= most:
            return dtype
    raise ValueError(f"a bit-packed mask row has {rows} columns: accepted are 1 to 32")


def write_mask(c: Candidates, meets: Bools, prefix_lens: Ints, rows: Ints) -> list[int]:
    """Write the defined cells of `c.mask_buffer` in place and return their offsets (B+1).

    `meets` (B, N, N) as in `Walks`. Column 0, the root, is set in every row, padding included, so that no
    row is empty. Prefix cells are set where `c.fill_prefix_mask` says so and otherwise left as they are.
    Raises ValueError where the buffer is too small.
    """
    offsets = mask_offsets(c.mask_mode, prefix_lens.tolist(), rows.tolist())
    if c.mask_buffer.numel() < offsets[-1]:
        raise ValueError(
            f"mask_buffer has {c.mask_buffer.numel()} cells: {c.mask_mode.name} needs {offsets[-1]}"
        )
    seen = meets.copy()
    seen[:, :, 0] = True
    is_row = np.arange(meets.shape[1]) < rows[:, None]
    seen &= is_row[:, None, :]
    if c.mask_mode not in (MaskMode.FULL_MASK, MaskMode.QLEN_ONLY):
        _write_packed(c.mask_buffer, seen[is_row])
        return offsets
    cells = is_row[:, :, None] & is_row[:, None, :]
    block = torch.from_numpy(seen[cells]).to(c.mask_buffer.device)  # request by request, row by row
    if c.mask_mode is MaskMode.QLEN_ONLY:
        c.mask_buffer[: offsets[-1]] = block
        return offsets
    if c.fill_prefix_mask:
        c.mask_buffer[: offsets[-1]] = True
    b, i, j = cells.nonzero()
    place = np.asarray(offsets)[b] + i * (prefix_lens + rows)[b] + prefix_lens[b] + j
    c.mask_buffer[torch.from_numpy(place).to(c.mask_buffer.device)] = block
    return offsets


def _write_packed(buffer: Tensor, seen: Bools) -> None:
    """Items of `seen` (rows, Nmax): bit j of an item is column j, little-endian."""
    columns, size = seen.shape[1], buffer.element_size()
    if buffer.dtype != packed_dtype(columns):
        raise ValueError(
            f"mask_buffer is {buffer.dtype}: {columns} columns are packed into {packed_dtype(columns)}"
        )
    bits = np.pad(seen, ((0, 0), (0, 8 * size - columns)))
    items = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").reshape(-1))
    # torch has no bit arithmetic on uint16 and uint32 on every device: write bytes instead.
    buffer.view(torch.uint8)[: len(items)] = items.to(buffer.device)
