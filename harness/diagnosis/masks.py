"""Visibility: a right tree mask, read in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.listing import row_count, rows_read
from treeproof.diagnosis.mask_layouts import keys_by_rows, wrong_bases, wrong_lines, wrong_starts
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend", "forward")


@hypothesis(
    "mask-transposed",
    "the tree mask is read with rows and columns exchanged",
    *_GROUPS,
    throughout=keys_by_rows,
)
def mask_transposed(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    yield (
        "",
        rows_read(
            right, lambda row: [r.row for r in ground.by_request[row.b] if row.row in r.path]
        ),
    )


@hypothesis(
    "mask-column-shift",
    "the tree mask is applied some columns off",
    *_GROUPS,
    throughout=wrong_bases,
)
def mask_column_shift(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for by in (1, -1, 2, -2):
        # Column j is let through where the mask says so of column j - by.
        def shifted(row: Row, by: int = by) -> list[int]:
            return [r + by for r in row.path if 0 <= r + by < row_count(right, row)]

        yield f"by {by:+d} in the tree block", rows_read(right, shifted)

        def around(row: Row, by: int = by) -> list[int]:
            return [(r + by) % row_count(right, row) for r in row.path]

        yield f"by {by:+d} round the tree block", rows_read(right, around)

        def sliding(row: Row, by: int = by) -> list[Key]:
            """Over prefix and tree in one line; what comes in from outside is visible."""
            p, n = row.prefix, row_count(right, row)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [key for c, key in enumerate(keys) if c - by < 0 or c - by in let]

        yield f"by {by:+d} over prefix and tree", reading(right, sliding)

        def beside(row: Row, by: int = by) -> list[Key]:
            """The same, and what comes in from outside is hidden."""
            p, n = row.prefix, row_count(right, row)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [key for c, key in enumerate(keys) if c - by in let]

        yield f"by {by:+d} over prefix and tree, the first hidden", reading(right, beside)
    window = ground.window
    if window is not None:
        # Columns of the mask that the window has clipped away are still counted.
        def clipped(row: Row) -> list[Key]:
            p, n = row.prefix, row_count(right, row)
            gone = max(0, p - window + 1)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [keys[c] for c in range(gone, p + n) if c - gone in let]

        yield "by the keys that the window has clipped", reading(right, clipped)


@hypothesis(
    "mask-of-neighbour",
    "a request's rows are read under the mask of another, or from where theirs does not begin",
    *_GROUPS,
    throughout=wrong_starts,
)
def mask_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for name, other in neighbours(ground):

        def theirs(row: Row, other: Callable[[int], int] = other) -> list[int] | tuple[int, ...]:
            rows, n = ground.by_request[other(row.b)], row_count(right, row)
            if row.row >= len(rows):
                return ()
            return [r for r in rows[row.row].path if r < n]

        yield name, rows_read(right, theirs)

        def kept(row: Row, other: Callable[[int], int] = other) -> list[int] | tuple[int, ...]:
            rows, n = ground.by_request[other(row.b)], row_count(right, row)
            return row.path if row.row >= len(rows) else [r for r in rows[row.row].path if r < n]

        yield f"{name}, as far as it goes", rows_read(right, kept)

        def alike(row: Row, other: Callable[[int], int] = other) -> tuple[int, ...]:
            rows = ground.by_request[other(row.b)]
            return rows[row.row].path if len(rows) == row_count(right, row) else row.path

        yield f"{name}, where it has as many rows", rows_read(right, alike)


@hypothesis("mask-word-overflow", "rows or columns past a mask word's bits are lost", *_GROUPS)
def mask_word_overflow(right: World) -> Iterator[tuple[str, World]]:
    for bits in (32, 16, 8, 64):
        choices: dict[str, Callable[[Row, int], Iterable[int]]] = {
            "columns past it are hidden": lambda row, w: [r for r in row.path if r < w],
            "columns past it wrap around": lambda row, w: dict.fromkeys(r % w for r in row.path),
            "columns past it take the bits of the first": lambda row, w: [
                r for r in range(row_count(right, row)) if r % w in {p for p in row.path if p < w}
            ],
            "rows past it read nothing of the tree": lambda row, w: row.path if row.row < w else (),
            "rows past it read all rows": lambda row, w: (
                row.path if row.row < w else range(row_count(right, row))
            ),
            "columns past it are visible": lambda row, w: [
                r for r in range(row_count(right, row)) if r in row.path or r >= w
            ],
            "columns past it are visible up to the row": lambda row, w: [
                r for r in range(row_count(right, row)) if r in row.path or w <= r <= row.row
            ],
            "rows past it read the rows up to their own": lambda row, w: (
                row.path if row.row < w else range(row.row + 1)
            ),
            "rows past it read themselves alone": lambda row, w: (
                row.path if row.row < w else [row.row]
            ),
            "rows past it take the masks of the first rows": lambda row, w: (
                right.ground.row(row.b, row.row % w).path
            ),
        }
        for detail, rows_of in choices.items():
            yield (
                f"{bits} bits, {detail}",
                rows_read(
                    right,
                    lambda row, rows_of=rows_of, bits=bits: rows_of(row, bits),  # type: ignore[misc]
                ),
            )


@hypothesis(
    "mask-rows-of-buffer-width",
    "mask rows are stepped over at the width of another buffer",
    *_GROUPS,
    throughout=wrong_lines,
)
def mask_rows_of_buffer_width(right: World) -> Iterator[tuple[str, World]]:
    """The square masks of the batch lie row after row; here they are read at another width."""
    ground = right.ground
    widths = {
        "the longest request's": max(r.num_rows for r in ground.requests),
        "one more": -1,
        "the next multiple of 8": -8,
        "the next multiple of 16": -16,
        "the next multiple of 32": -32,
    }
    blocks = [_block(right, b) for b in range(len(ground.requests))]
    flat = [cell for block in blocks for line in block for cell in line]
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block) ** 2)
    for name, width in widths.items():

        def line_of(b: int, width: int = width) -> int:
            own = ground.requests[b].num_rows
            if width == -1:
                return own + 1
            return width if width > 0 else -(-own // -width) * -width

        def packed(row: Row, line_of: Callable[[int], int] = line_of) -> list[int]:
            """Written without gaps, read at a wider stride."""
            at = starts[row.b] + row.row * line_of(row.b)
            n = row_count(right, row)
            return [r for r in range(n) if at + r < len(flat) and flat[at + r]]

        def spread(row: Row, line_of: Callable[[int], int] = line_of) -> list[int]:
            """Written at a wider stride (the rest hidden), read without gaps."""
            wide, own = line_of(row.b), ground.requests[row.b].num_rows
            lines = [[*line, *[False] * (wide - own)] for line in blocks[row.b]]
            cells = [cell for line in lines for cell in line]
            at = row.row * own
            return [
                r for r in range(row_count(right, row)) if at + r < len(cells) and cells[at + r]
            ]

        yield f"{name} width, read", rows_read(right, packed)
        yield f"{name} width, written", rows_read(right, spread)


def _block(right: World, b: int) -> list[list[bool]]:
    """The square mask of a request, padded rows included: those see the root alone."""
    ground = right.ground
    count, rows = ground.requests[b].num_rows, ground.by_request[b]
    paths = [set(row.path) for row in rows] + [{0}] * (count - len(rows))
    return [[column in path for column in range(count)] for path in paths]


@hypothesis(
    "tile-skipped",
    "key tiles that lie wholly below the diagonal are read without the mask",
    *_GROUPS,
)
def tile_skipped(right: World) -> Iterator[tuple[str, World]]:
    for tile in (2, 4, 8, 16, 32, 64):

        def unmasked(row: Row, tile: int = tile) -> list[int]:
            below = row.row // tile * tile
            return [*range(below), *(r for r in row.path if r >= below)]

        yield f"tiles of {tile} rows", rows_read(right, unmasked)
    for tile in (2, 4, 8, 16, 32, 64):
        for rows in (2, 4, 8, 16, 32, 64):
            if rows == tile:
                continue

            def oblong(row: Row, tile: int = tile, rows: int = rows) -> list[int]:
                first = row.row // rows * rows
                below = first // tile * tile
                return [*range(below), *(r for r in row.path if r >= below)]

            yield f"tiles of {rows} rows by {tile} keys", rows_read(right, oblong)


MASKS: tuple[Hypothesis, ...] = (
    mask_transposed,
    mask_of_neighbour,
    mask_column_shift,
    tile_skipped,
    mask_word_overflow,
    mask_rows_of_buffer_width,
)
