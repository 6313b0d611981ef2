"""The flat mask of a batch: written with one layout, and read with another.

Cells of all requests lie one after another: of each request its rows, of each row its line. Bits of
packed items are cells as well. A layout says where each request begins, how many rows it takes, and
how long a line is. One side has the layout that was asked for, the other a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from treeproof.contract.layout import MaskMode
from treeproof.diagnosis.ground import Ground, Key, Row, as_keys
from treeproof.diagnosis.hypothesis import reading
from treeproof.diagnosis.world import World
from treeproof.generate.pool import candidates

Cells = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Box:
    """What a request takes of the buffer: rows, cells in a line, and those before the tree's."""

    rows: int
    line: int
    skip: int


@dataclass(frozen=True)
class FlatMask:
    """The mask of a batch as it was asked for.

    `lines[b]` (rows, cells) of each request. `item`: cells of a packed item, else 1. `garbage`: what
    the buffer holds before anything is written.
    """

    lines: tuple[Cells, ...]
    boxes: tuple[Box, ...]
    garbage: Cells
    item: int

    @property
    def starts(self) -> list[int]:
        return starts_of(self.boxes)

    def written(
        self,
        boxes: Sequence[Box],
        starts: Sequence[int],
        *,
        over: Cells,
        hidden: bool = False,
        last_again: bool = False,
    ) -> Cells:
        """The buffer with every line put into these boxes. Cells of a box that no line fills are
        `hidden`, or keep what `over` holds; rows that none fills may be the last one again."""
        ends = [start + box.rows * box.line for box, start in zip(boxes, starts, strict=True)]
        # What lies past the end is cut off afterwards.
        cells = np.pad(over, (0, max(0, *ends, len(over)) - len(over)))
        for lines, box, start, end in zip(self.lines, boxes, starts, ends, strict=True):
            block = cells[start:end].reshape(box.rows, box.line)
            if hidden:
                block[:] = False
            rows, line = min(box.rows, len(lines)), min(box.line, lines.shape[1])
            block[:rows, :line] = lines[:rows, :line]
            if last_again:
                block[rows:, :line] = lines[-1, :line]
        return cells[: len(over)]

    def read(self, cells: Cells, boxes: Sequence[Box], starts: Sequence[int]) -> list[Cells] | None:
        """The lines of each request, where they are looked for; None past the buffer's end.

        Of lines that are too short the next one's cells are read as well; of packed ones no more.
        """
        found = []
        for own, box, start in zip(self.boxes, boxes, starts, strict=True):
            width = box.skip + own.rows if self.item == 1 else box.line
            if start < 0 or start + (own.rows - 1) * box.line + width > len(cells):
                return None
            first = start + box.line * np.arange(own.rows)
            found.append(cells[first[:, None] + np.arange(width)])
        return found


def starts_of(boxes: Sequence[Box]) -> list[int]:
    """Where each begins, one after another."""
    return [0, *accumulate(box.rows * box.line for box in boxes)][:-1]


@lru_cache(maxsize=64)
def flat_mask(ground: Ground) -> FlatMask:
    """The mask of the case, in its mode."""
    mode = ground.case.mask.mode
    buffer = candidates(ground.case, ground.scene.ledger).mask_buffer
    octets = buffer.view(torch.uint8).numpy()
    item = 8 * buffer.element_size() if mode is MaskMode.QLEN_ONLY_BITPACKING else 1
    bits = np.unpackbits(octets, bitorder="little") if item > 1 else octets
    garbage: Cells = bits.astype(np.bool_)
    prefix_filled = ground.case.mask.fill_prefix
    blocks = [square(ground, b) for b in range(len(ground.requests))]
    boxes = []
    for block, request in zip(blocks, ground.requests, strict=True):
        skip = request.prefix_len if mode is MaskMode.FULL_MASK else 0
        boxes.append(Box(len(block), item if item > 1 else skip + len(block), skip))
    lines = []
    for block, box, start in zip(blocks, boxes, starts_of(boxes), strict=True):
        size = box.rows * box.line
        whole = garbage[start : start + size].reshape(box.rows, box.line).copy()
        whole[:, box.skip :] = False
        whole[:, box.skip : box.skip + len(block)] = block
        if prefix_filled:
            whole[:, : box.skip] = True
        lines.append(whole)
    return FlatMask(tuple(lines), tuple(boxes), garbage, item)


def square(ground: Ground, b: int) -> Cells:
    """(rows, rows) of a request, padded rows included: those see the root alone."""
    count, rows = ground.requests[b].num_rows, ground.by_request[b]
    block = np.zeros((count, count), dtype=bool)
    block[:, 0] = True
    for row in rows:
        block[row.row, list(row.path)] = True
    return block


# --- what is read --------------------------------------------------------------------------------


def _tree(lines: Cells, box: Box, rows: int) -> Cells:
    """(rows, rows) of the tree; what a line does not have is hidden."""
    own = lines[:, box.skip : box.skip + rows]
    return np.pad(own, ((0, 0), (0, rows - own.shape[1])))


def as_lines(right: World, lines: Sequence[Cells], boxes: Sequence[Box]) -> World:
    """A mask decides on prefix and tree. Columns of padded rows are no slot's."""
    ground = right.ground
    trees = [
        _tree(own, box, request.num_rows)
        for own, box, request in zip(lines, boxes, ground.requests, strict=True)
    ]

    def keys(row: Row) -> list[Key]:
        box, line = boxes[row.b], lines[row.b][row.row]
        prefix = ground.prefix(row.b)
        # A mask without columns of the prefix lets all of it through.
        let = [key for key, cell in zip(prefix, line[: box.skip], strict=False) if cell]
        front = let if box.skip else prefix
        return [*front, *_let(ground, row, trees[row.b])]

    return reading(right, keys)


def as_tree(right: World, lines: Sequence[Cells], boxes: Sequence[Box]) -> World:
    """A mask decides on the tree alone; the whole prefix is read."""
    ground = right.ground
    trees = [
        _tree(own, box, request.num_rows)
        for own, box, request in zip(lines, boxes, ground.requests, strict=True)
    ]
    return reading(right, lambda row: [*ground.prefix(row.b), *_let(ground, row, trees[row.b])])


def _let(ground: Ground, row: Row, tree: Cells) -> list[Key]:
    return [column(ground, row, r) for r in np.flatnonzero(tree[row.row]).tolist()]


def column(ground: Ground, row: Row, r: int) -> Key:
    """The key of row `r` of a row's request; of padded rows one that is no slot's."""
    real = len(ground.by_request[row.b])
    return ground.own(row.b, r) if r < real else Key(row.prefix + r, real - r - 1, real - r - 1)


def as_account(
    right: World, lines: Sequence[Cells], boxes: Sequence[Box], *, depths: bool
) -> World:
    """A mask decides on the tree, and is the kernel's account of it: a row that does not see itself
    passes for padding, which has the root's slot. `depths`: those too are counted off the mask."""
    ground, window = right.ground, right.ground.window
    trees = [
        _tree(own, box, request.num_rows)
        for own, box, request in zip(lines, boxes, ground.requests, strict=True)
    ]
    uncut, seen = [], []
    for row in ground.rows:
        tree, rows = trees[row.b], ground.by_request[row.b]
        depth = [r.depth for r in rows] + [0] * (len(tree) - len(rows))
        if depths:
            depth = (tree.sum(1) - 1).tolist()
        own = [
            ground.own(row.b, r if r < len(rows) and tree[r, r] else 0)._replace(
                at=row.prefix + depth[r]
            )
            for r in np.flatnonzero(tree[row.row]).tolist()
        ]
        prefix = ground.prefix(row.b)
        uncut.append(as_keys((*prefix, *own)))
        # No row's window begins before the root's.
        first = 0 if window is None else row.prefix + max(0, depth[row.row]) - window + 1
        own_first = -1 if window is None else row.prefix + depth[row.row] - window + 1
        front = (k for k in prefix if k.at >= first)
        seen.append(as_keys((*front, *(k for k in own if k.at >= own_first))))
    return replace(right, uncut=tuple(uncut), seen=tuple(seen))


def read_as(
    right: World, name: str, lines: Sequence[Cells] | None, boxes: Sequence[Box]
) -> Iterator[tuple[str, World]]:
    """Each way of heeding what was read; nothing where that is right, or the buffer ended before."""
    if lines is None or _is_right(right.ground, lines, boxes):
        return
    yield name, as_lines(right, lines, boxes)
    if right.ground.case.mask.mode is MaskMode.FULL_MASK:
        yield f"{name}, for the tree alone", as_tree(right, lines, boxes)
    for what, depths in (("padding", False), ("padding and depths", True)):
        yield (
            f"{name}, for the tree and {what}",
            as_account(right, lines, boxes, depths=depths),
        )


def declared_as(
    right: World, name: str, lines: Sequence[Cells] | None, boxes: Sequence[Box]
) -> Iterator[tuple[str, World]]:
    """The one way in which a table is heeded that lies where it should."""
    if lines is not None and not _is_right(right.ground, lines, boxes):
        yield name, as_lines(right, lines, boxes)


def _is_right(ground: Ground, lines: Sequence[Cells], boxes: Sequence[Box]) -> bool:
    flat = flat_mask(ground)
    return tuple(box.skip for box in boxes) == tuple(box.skip for box in flat.boxes) and all(
        np.array_equal(a, b) for a, b in zip(lines, flat.lines, strict=True)
    )
