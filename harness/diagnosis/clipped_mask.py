"""A window that clips the list of prefix keys, and a mask that is read as if it were clipped as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from treeproof.contract.layout import MaskMode
from treeproof.diagnosis.flat_masks import Cells, column, flat_mask
from treeproof.diagnosis.ground import Ground, Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World

Index = Callable[[Row], int]


@hypothesis(
    "mask-lines-clipped",
    "the window clips the list of prefix keys, and lines of the mask are taken to be as short",
    "attend",
)
def mask_lines_clipped(right: World) -> Iterator[tuple[str, World]]:
    """Lines begin where each request's do, and are as long as its clipped list with the tree."""
    ground, window = right.ground, right.ground.window
    if window is None or ground.case.mask.mode is not MaskMode.FULL_MASK:
        return
    flat = flat_mask(ground)
    asked = flat.written(flat.boxes, flat.starts, over=flat.garbage)
    for kept, keys in (("W - 1 keys", window - 1), ("W keys", window)):
        boxes = tuple(
            replace(box, skip=min(box.skip, keys), line=min(box.skip, keys) + box.rows)
            for box in flat.boxes
        )
        lines = flat.read(asked, boxes, flat.starts)
        assert lines is not None, "shorter lines end before the buffer does"
        yield f"{kept} kept", _read(right, lines, lambda row: row.position, by_columns=False)
        yield (
            f"{kept} kept, and the window cut by rows and columns",
            _read(right, lines, lambda row: row.prefix + row.row, by_columns=True),
        )


def _read(right: World, lines: list[Cells], index: Index, *, by_columns: bool) -> World:
    """What the window of a query at `index` leaves of the keys that its line lets through."""
    ground = right.ground
    assert ground.window is not None
    uncut, seen = [], []
    for row in ground.rows:
        keys = _listed(ground, row, lines[row.b].shape[1])
        let = [keys[cell] for cell in np.flatnonzero(lines[row.b][row.row]).tolist()]
        first = index(row) - ground.window + 1
        uncut.append(tuple(key for key, _ in let))
        seen.append(tuple(key for key, c in let if (c if by_columns else key.at) >= first))
    written = {**right.written, **_padding(ground)}
    return replace(right, uncut=tuple(uncut), seen=tuple(seen), written=written)


def _padding(ground: Ground) -> dict[int, tuple[int, int]]:
    """The pad slot, where a cell that is misread may lead: it holds the last padded row."""
    pad = ground.case.layout.pad_slot
    rows = [flat for flat, slot in enumerate(ground.row_slot) if slot < 0]
    return {pad: (rows[-1], rows[-1])} if rows and pad >= 0 else {}


def _listed(ground: Ground, row: Row, count: int) -> list[tuple[Key, int]]:
    """The last prefix keys and all rows of the tree, `count` together, each with its column."""
    rows = ground.requests[row.b].num_rows
    prefix = list(enumerate(ground.prefix(row.b)))[row.prefix - (count - rows) :]
    pad, real = ground.case.layout.pad_slot, len(ground.by_request[row.b])
    tree = [
        (
            column(ground, row, r) if r < real or pad < 0 else Key(row.prefix + r, pad, pad),
            row.prefix + r,
        )
        for r in range(rows)
    ]
    return [*((key, c) for c, key in prefix), *tree]


CLIPPED_MASK: tuple[Hypothesis, ...] = (mask_lines_clipped,)
