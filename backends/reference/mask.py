"""Tree masks in the three layouts: how many cells there are, and which are set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

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


def write_mask(
    c: Candidates,
    walks: Sequence[Sequence[Sequence[int]]],
    prefix_lens: Sequence[int],
    rows: Sequence[int],
) -> list[int]:
    """Write the defined cells of `c.mask_buffer` in place and return their offsets (B+1).

    `walks[b][i]` are the rows on the way up from row i. Column 0, the root, is set in every row,
    padding included, so that no row is empty. Prefix cells are set where `c.fill_prefix_mask` says
    so and otherwise left as they are. Raises ValueError where the buffer is too small.
    """
    offsets = mask_offsets(c.mask_mode, prefix_lens, rows)
    if c.mask_buffer.numel() < offsets[-1]:
        raise ValueError(
            f"mask_buffer has {c.mask_buffer.numel()} cells: {c.mask_mode.name} needs {offsets[-1]}"
        )
    for b, (prefix, count) in enumerate(zip(prefix_lens, rows, strict=True)):
        block = _tree_block(walks[b], count, c.mask_buffer.device)
        cells = slice(offsets[b], offsets[b + 1])
        if c.mask_mode is MaskMode.FULL_MASK:
            whole = c.mask_buffer[cells].view(count, prefix + count)
            whole[:, prefix:] = block
            if c.fill_prefix_mask:
                whole[:, :prefix] = True
        elif c.mask_mode is MaskMode.QLEN_ONLY:
            c.mask_buffer[cells] = block.view(-1)
        else:
            _write_packed(c.mask_buffer, offsets[b], block, max(rows))
    return offsets


def _tree_block(walks: Sequence[Sequence[int]], count: int, device: torch.device) -> Tensor:
    """(count, count) bool: cell (i, j) is set iff j is the root, row i or above row i."""
    block = torch.zeros(count, count, dtype=torch.bool, device="cpu")  # filled from host lists
    block[:, 0] = True
    i = [row for row, walk in enumerate(walks) for _ in walk]
    j = [above for walk in walks for above in walk]
    block[i, j] = True
    return block.to(device)


def _write_packed(buffer: Tensor, first: int, block: Tensor, widest: int) -> None:
    """Items `first` and following: bit j of an item is column j, little-endian."""
    if buffer.dtype != packed_dtype(widest):
        raise ValueError(
            f"mask_buffer is {buffer.dtype}: {widest} columns are packed into {packed_dtype(widest)}"
        )
    count, size = block.shape[0], buffer.element_size()
    bits = block.new_zeros(count, 8 * size)
    bits[:, :count] = block
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], device=block.device)
    items = (bits.view(count, size, 8) * weights).sum(dim=2).to(torch.uint8)
    # torch has no bit arithmetic on uint16 and uint32 on every device: write bytes instead.
    buffer.view(torch.uint8)[first * size : (first + count) * size] = items.view(-1)
