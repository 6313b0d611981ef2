"""Layouts that a flat mask has by mistake: where requests begin, how many rows and how long lines are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from treeproof.contract.layout import MaskMode
from treeproof.diagnosis.flat_masks import Box, FlatMask, declared_as, flat_mask, read_as, starts_of
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.world import World


def wrong_starts(right: World) -> Iterator[tuple[str, World]]:
    """Requests begin elsewhere; rows and lines are right."""
    flat = flat_mask(right.ground)
    for name, starts in _starts(right.ground, flat).items():
        if starts == flat.starts:
            continue
        asked = flat.written(flat.boxes, flat.starts, over=flat.garbage)
        moved = flat.written(flat.boxes, starts, over=flat.garbage)
        found = flat.read(asked, flat.boxes, starts)
        yield from read_as(right, f"read from {name}", found, flat.boxes)
        found = flat.read(moved, flat.boxes, flat.starts)
        yield from declared_as(right, f"written from {name}", found, flat.boxes)


def _starts(ground: Ground, flat: FlatMask) -> dict[str, list[int]]:
    """First cell of each request, counted wrongly."""
    sizes = [box.rows * box.line for box in flat.boxes]
    nodes = [request.num_nodes for request in ground.requests]
    last, turn = len(sizes) - 1, range(len(sizes))
    true = flat.starts
    # A cell, or an item of a packed mask, is what offsets count.
    one = flat.item

    def ends(counts: Sequence[int]) -> list[int]:
        return [0, *accumulate(count * one for count in counts)][:-1]

    rows = [box.rows for box in flat.boxes]
    keys = [box.skip + box.rows for box in flat.boxes]
    octets = max(1, flat.item // 8)
    live = [n * (1 if one > 1 else box.skip + n) for n, box in zip(nodes, flat.boxes, strict=True)]
    return {
        "the first cell, whichever the request": [0 for _ in turn],
        "the next request's cells": [true[min(b + 1, last)] for b in turn],
        "the previous request's cells": [true[max(b - 1, 0)] for b in turn],
        "offsets in rows": ends(rows),
        "offsets in keys": ends(keys),
        "offsets in elements, rows by rows": ends([n * n for n in rows]),
        "offsets in elements, rows by keys": ends([n * m for n, m in zip(rows, keys, strict=True)]),
        "offsets in bytes": ends([size // one * octets for size in sizes]),
        "offsets in bits": ends([size // one * 8 * octets for size in sizes]),
        "offsets of nodes, without padded rows": ends(live),
        "offsets of nodes' rows alone": ends(
            [n * (box.line // one) for n, box in zip(nodes, flat.boxes, strict=True)]
        ),
        "the request's number": [b * one for b in turn],
        "the request's own size, times its number": [b * size for b, size in enumerate(sizes)],
        "the first request's size, times the request's number": [b * sizes[0] for b in turn],
        "the largest request's size, times the request's number": [b * max(sizes) for b in turn],
        "one cell on": [start + one for start in true],
        "one cell back, past the first request": [max(0, start - one) for start in true],
        "one row on": [start + box.line for start, box in zip(true, flat.boxes, strict=True)],
        "one cell on for each request before": [start + b * one for b, start in enumerate(true)],
        "one cell back for each request before": [start - b * one for b, start in enumerate(true)],
    }


def wrong_lines(right: World) -> Iterator[tuple[str, World]]:
    """Rows are as far apart as in another buffer, or another number of them is there."""
    flat = flat_mask(right.ground)
    asked = flat.written(flat.boxes, flat.starts, over=flat.garbage)
    for name, boxes in _boxes(right.ground, flat).items():
        if boxes == flat.boxes or any(box.rows < 1 or box.line < 1 for box in boxes):
            continue
        for where, starts in (("", starts_of(boxes)), (", from where it should", flat.starts)):
            for skips, heeded in _skips(flat, boxes):
                lines = flat.read(asked, heeded, starts)
                yield from read_as(right, f"{name} read{where}{skips}", lines, heeded)
            rests = {
                "the rest hidden": flat.written(boxes, starts, over=flat.garbage, hidden=True),
                "the rest as it was": flat.written(boxes, starts, over=flat.garbage),
                "the rest as in a right mask": flat.written(boxes, starts, over=asked),
            }
            if any(box.rows > own.rows for box, own in zip(boxes, flat.boxes, strict=True)):
                rests["the last row again"] = flat.written(
                    boxes, starts, over=asked, last_again=True
                )
            for rest, laid in rests.items():
                lines = flat.read(laid, flat.boxes, flat.starts)
                yield from declared_as(right, f"{name} written{where}, {rest}", lines, flat.boxes)


def _skips(flat: FlatMask, boxes: Sequence[Box]) -> Iterator[tuple[str, tuple[Box, ...]]]:
    """The tree's columns begin where they should in a line, or are the last of it."""
    own = tuple(replace(b, skip=f.skip) for b, f in zip(boxes, flat.boxes, strict=True))
    yield "", own
    last = tuple(
        replace(box, skip=max(0, box.line - f.rows))
        for box, f in zip(boxes, flat.boxes, strict=True)
    )
    if flat.item == 1 and last != own:
        yield ", the tree at the end of a line", last


def _boxes(ground: Ground, flat: FlatMask) -> dict[str, tuple[Box, ...]]:
    """What each request takes of the buffer, wrongly."""
    nodes = [request.num_nodes for request in ground.requests]
    rows, lines, skips = (
        max(getattr(box, name) for box in flat.boxes) for name in ("rows", "line", "skip")
    )
    window = ground.window
    packed = flat.item > 1

    def each(
        row_count: Sequence[int] | int | None, line: Sequence[int] | int | None
    ) -> tuple[Box, ...]:
        counts = (
            [row_count] * len(nodes)
            if row_count is None or isinstance(row_count, int)
            else row_count
        )
        cells = [line] * len(nodes) if line is None or isinstance(line, int) else line
        return tuple(
            replace(
                box,
                rows=box.rows if n is None else n,
                line=box.line if m is None or (packed and m % 8) else m,
            )
            for box, n, m in zip(flat.boxes, counts, cells, strict=True)
        )

    own = flat.boxes
    found = {
        "lines of one cell more": each(None, [box.line + 1 for box in own]),
        "lines of one cell less": each(None, [box.line - 1 for box in own]),
        "one row more": each([box.rows + 1 for box in own], None),
        "one row less": each([box.rows - 1 for box in own], None),
        "one row and cell more": each([box.rows + 1 for box in own], [b.line + 1 for b in own]),
        "nodes alone, without padded rows": each(
            nodes, [b.skip + n for b, n in zip(own, nodes, strict=True)]
        ),
        "nodes' rows alone": each(nodes, None),
        "nodes' columns alone": each(None, [b.skip + n for b, n in zip(own, nodes, strict=True)]),
        "lines as long as the longest": each(None, lines),
        "as many rows as the largest request's": each(rows, None),
        "rows and lines as the largest request's": each(rows, lines),
        "as many columns as the largest tree's": each(None, [box.skip + rows for box in own]),
        "rows and columns as the largest tree's": each(rows, [box.skip + rows for box in own]),
        "as many columns as the longest prefix's": each(None, [skips + box.rows for box in own]),
        "the longest prefix and the largest tree": each(None, skips + rows),
        "rows of the largest tree, and the longest prefix": each(rows, skips + rows),
        "the tree's columns alone": each(None, [box.rows for box in own]),
        "lines of the next request": each(None, [b.line for b in (*own[1:], own[0])]),
        "lines of the first request": each(None, own[0].line),
        "items of twice the width": each(None, [2 * box.line for box in own] if packed else None),
        "items of half the width": each(None, [box.line // 2 for box in own] if packed else None),
    }
    for by in (8, 16, 32):
        found[f"lines of a multiple of {by}"] = each(None, [-(-b.line // by) * by for b in own])
        found[f"rows of a multiple of {by}"] = each([-(-b.rows // by) * by for b in own], None)
    if window is not None:
        for name, keys in (("W - 1", window - 1), ("W", window)):
            clipped = [min(box.skip, keys) + box.rows for box in own]
            found[f"lines with {name} keys of the prefix at most"] = each(None, clipped)
    return found


def wrong_bases(right: World) -> Iterator[tuple[str, World]]:
    """The tree's columns are looked for at another cell of each line."""
    ground, flat = right.ground, flat_mask(right.ground)
    if flat.item > 1:
        return
    window = ground.window
    longest = max(box.skip for box in flat.boxes)
    bases = {
        "from the line's first cell": [0 for _ in flat.boxes],
        "after the longest prefix": [longest for _ in flat.boxes],
    }
    if window is not None:
        for name, keys in (("W - 1", window - 1), ("W", window)):
            clipped = [min(box.skip, keys) for box in flat.boxes]
            bases[f"after {name} keys of the prefix at most"] = clipped
    asked = flat.written(flat.boxes, flat.starts, over=flat.garbage)
    lines = flat.read(asked, flat.boxes, flat.starts)
    for name, skips in bases.items():
        heeded = tuple(replace(b, skip=s) for b, s in zip(flat.boxes, skips, strict=True))
        if heeded != flat.boxes:
            yield from read_as(right, f"the tree {name}", lines, heeded)


def keys_by_rows(right: World) -> Iterator[tuple[str, World]]:
    """Cells of a request lie key after key, where rows are read; or the other way round."""
    flat = flat_mask(right.ground)
    if flat.item > 1 or right.ground.case.mask.mode is not MaskMode.FULL_MASK:
        return
    turned = [np.ascontiguousarray(own.T).reshape(own.shape) for own in flat.lines]
    yield from declared_as(right, "keys by rows, written", turned, flat.boxes)
    back = [own.reshape(own.T.shape).T for own in flat.lines]
    yield from read_as(right, "keys by rows, read", back, flat.boxes)
