"""Visibility: which rows of its tree a row reads, where not its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend")


def _rows(right: World, rows_of: Callable[[Row], Iterable[int]]) -> World:
    """Each row reads the whole prefix and these rows of its request."""
    ground = right.ground
    return reading(right, lambda row: ground.reads(row, tuple(rows_of(row))))


def _count(right: World, row: Row) -> int:
    return len(right.ground.by_request[row.b])


@hypothesis(
    "causal-mask",
    "a row reads all rows up to its own, a plain causal mask instead of the tree's",
    *_GROUPS,
)
def causal_mask(right: World) -> Iterator[tuple[str, World]]:
    yield "", _rows(right, lambda row: range(row.row + 1))


@hypothesis("no-mask", "a row reads all rows of its request, without any mask", *_GROUPS)
def no_mask(right: World) -> Iterator[tuple[str, World]]:
    yield "", _rows(right, lambda row: range(_count(right, row)))


@hypothesis("sibling-visible", "a row also reads its siblings", *_GROUPS)
def sibling_visible(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def siblings(row: Row) -> list[int]:
        return [r.row for r in ground.by_request[row.b] if row.row and r.parent == row.parent]

    choices: dict[str, Callable[[Row], list[int]]] = {
        "": lambda row: siblings(row),
        "earlier ones": lambda row: [r for r in siblings(row) if r < row.row],
        "later ones": lambda row: [r for r in siblings(row) if r > row.row],
        "the one before": lambda row: [r for r in siblings(row) if r < row.row][-1:],
        "the first": lambda row: siblings(row)[:1],
        "all rows of its depth": lambda row: [
            r.row for r in ground.by_request[row.b] if r.depth == row.depth
        ],
        "siblings of its ancestors too": lambda row: [
            r for a in row.path for r in siblings(ground.row(row.b, a))
        ],
    }
    for detail, extra in choices.items():
        yield detail, _rows(right, lambda row, extra=extra: dict.fromkeys([*row.path, *extra(row)]))  # type: ignore[misc]
    # One more step down its own list: the row after it, where that is a sibling.
    yield (
        "the row after it, where a sibling",
        _rows(right, lambda row: [*row.path, *(r for r in siblings(row) if r == row.row + 1)]),
    )
    yield (
        "the row before it, where a sibling",
        _rows(right, lambda row: [*row.path, *(r for r in siblings(row) if r == row.row - 1)]),
    )


@hypothesis("self-hidden", "a row does not read its own key", *_GROUPS)
def self_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", _rows(right, lambda row: row.path[:-1])
    yield "the root excepted", _rows(right, lambda row: row.path[:-1] if row.row else row.path)


@hypothesis("root-hidden", "rows do not read the root's key", *_GROUPS)
def root_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", _rows(right, lambda row: row.path[1:])
    yield "the root excepted", _rows(right, lambda row: row.path[1:] if row.row else row.path)


@hypothesis("parent-hidden", "a row does not read its parent's key", *_GROUPS)
def parent_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "", _rows(right, lambda row: [r for r in row.path if r != row.parent])
    yield (
        "where that is not the root",
        _rows(right, lambda row: [r for r in row.path if r != row.parent or r == 0]),
    )


@hypothesis(
    "ancestor-hidden", "a row does not read an ancestor further up than its parent", *_GROUPS
)
def ancestor_hidden(right: World) -> Iterator[tuple[str, World]]:
    yield "the grandparent", _rows(right, lambda row: [*row.path[:-3], *row.path[-2:]])
    yield (
        "the grandparent, where that is not the root",
        _rows(
            right,
            lambda row: (
                [*row.path[: max(1, len(row.path) - 3)], *row.path[-2:]]
                if len(row.path) > 3
                else row.path
            ),
        ),
    )
    yield "all of them", _rows(right, lambda row: row.path[-2:])
    yield (
        "all of them but the root",
        _rows(right, lambda row: row.path if len(row.path) < 4 else (0, *row.path[-2:])),
    )
    yield (
        "the root's child",
        _rows(right, lambda row: row.path if len(row.path) < 4 else (0, *row.path[2:])),
    )


@hypothesis("mask-transposed", "the tree mask is read with rows and columns exchanged", *_GROUPS)
def mask_transposed(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    yield (
        "",
        _rows(right, lambda row: [r.row for r in ground.by_request[row.b] if row.row in r.path]),
    )


@hypothesis(
    "diagonal-top-left",
    "row i reads the first i + 1 keys: the causal diagonal starts at the first key, not the last",
    *_GROUPS,
)
def diagonal_top_left(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def first(row: Row) -> list[Key]:
        own = [ground.own(row.b, r) for r in range(_count(right, row))]
        return [*ground.prefix(row.b), *own][: row.row + 1]

    yield "", reading(right, first)
    yield (
        "of the keys that the tree lets it read",
        reading(right, lambda row: [key for key in ground.reads(row) if key in first(row)]),
    )


@hypothesis("mask-column-shift", "the tree mask is applied some columns off", *_GROUPS)
def mask_column_shift(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for by in (1, -1, 2, -2):
        # Column j is let through where the mask says so of column j - by.
        def shifted(row: Row, by: int = by) -> list[int]:
            return [r + by for r in row.path if 0 <= r + by < _count(right, row)]

        yield f"by {by:+d} in the tree block", _rows(right, shifted)

        def around(row: Row, by: int = by) -> list[int]:
            return [(r + by) % _count(right, row) for r in row.path]

        yield f"by {by:+d} round the tree block", _rows(right, around)

        def sliding(row: Row, by: int = by) -> list[Key]:
            """Over prefix and tree in one line; what comes in from outside is visible."""
            p, n = row.prefix, _count(right, row)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [key for c, key in enumerate(keys) if c - by < 0 or c - by in let]

        yield f"by {by:+d} over prefix and tree", reading(right, sliding)

        def beside(row: Row, by: int = by) -> list[Key]:
            """The same, and what comes in from outside is hidden."""
            p, n = row.prefix, _count(right, row)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [key for c, key in enumerate(keys) if c - by in let]

        yield f"by {by:+d} over prefix and tree, the first hidden", reading(right, beside)
    window = ground.window
    if window is not None:
        # Columns of the mask that the window has clipped away are still counted.
        def clipped(row: Row) -> list[Key]:
            p, n = row.prefix, _count(right, row)
            gone = max(0, p - window + 1)
            keys = [*ground.prefix(row.b), *(ground.own(row.b, r) for r in range(n))]
            let = {*range(p), *(p + r for r in row.path)}
            return [keys[c] for c in range(gone, p + n) if c - gone in let]

        yield "by the keys that the window has clipped", reading(right, clipped)


@hypothesis("mask-of-neighbour", "a request's rows are read under another request's mask", *_GROUPS)
def mask_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    for name, other in neighbours(ground):

        def theirs(row: Row, other: Callable[[int], int] = other) -> list[int] | tuple[int, ...]:
            rows, n = ground.by_request[other(row.b)], _count(right, row)
            if row.row >= len(rows):
                return ()
            return [r for r in rows[row.row].path if r < n]

        yield name, _rows(right, theirs)

        def kept(row: Row, other: Callable[[int], int] = other) -> list[int] | tuple[int, ...]:
            rows, n = ground.by_request[other(row.b)], _count(right, row)
            return row.path if row.row >= len(rows) else [r for r in rows[row.row].path if r < n]

        yield f"{name}, as far as it goes", _rows(right, kept)


@hypothesis("mask-word-overflow", "rows or columns past a mask word's bits are lost", *_GROUPS)
def mask_word_overflow(right: World) -> Iterator[tuple[str, World]]:
    for bits in (32, 16, 8, 64):
        choices: dict[str, Callable[[Row, int], Iterable[int]]] = {
            "columns past it are hidden": lambda row, w: [r for r in row.path if r < w],
            "columns past it wrap around": lambda row, w: dict.fromkeys(r % w for r in row.path),
            "columns past it take the bits of the first": lambda row, w: [
                r for r in range(_count(right, row)) if r % w in {p for p in row.path if p < w}
            ],
            "rows past it read nothing of the tree": lambda row, w: row.path if row.row < w else (),
            "rows past it read all rows": lambda row, w: (
                row.path if row.row < w else range(_count(right, row))
            ),
            "columns past it are visible": lambda row, w: [
                r for r in range(_count(right, row)) if r in row.path or r >= w
            ],
            "columns past it are visible up to the row": lambda row, w: [
                r for r in range(_count(right, row)) if r in row.path or w <= r <= row.row
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
                _rows(
                    right,
                    lambda row, rows_of=rows_of, bits=bits: rows_of(row, bits),  # type: ignore[misc]
                ),
            )


@hypothesis(
    "mask-rows-of-buffer-width",
    "mask rows are stepped over at the width of a wider buffer",
    *_GROUPS,
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
            n = _count(right, row)
            return [r for r in range(n) if at + r < len(flat) and flat[at + r]]

        def spread(row: Row, line_of: Callable[[int], int] = line_of) -> list[int]:
            """Written at a wider stride (the rest hidden), read without gaps."""
            wide, own = line_of(row.b), ground.requests[row.b].num_rows
            lines = [[*line, *[False] * (wide - own)] for line in blocks[row.b]]
            cells = [cell for line in lines for cell in line]
            at = row.row * own
            return [r for r in range(_count(right, row)) if at + r < len(cells) and cells[at + r]]

        yield f"{name} width, read", _rows(right, packed)
        yield f"{name} width, written", _rows(right, spread)


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

        yield f"tiles of {tile} rows", _rows(right, unmasked)
    for tile in (2, 4, 8, 16, 32, 64):
        for rows in (2, 4, 8, 16, 32, 64):
            if rows == tile:
                continue

            def oblong(row: Row, tile: int = tile, rows: int = rows) -> list[int]:
                first = row.row // rows * rows
                below = first // tile * tile
                return [*range(below), *(r for r in row.path if r >= below)]

            yield f"tiles of {rows} rows by {tile} keys", _rows(right, oblong)


VISIBILITY: tuple[Hypothesis, ...] = (
    causal_mask,
    no_mask,
    sibling_visible,
    root_hidden,
    self_hidden,
    parent_hidden,
    ancestor_hidden,
    mask_transposed,
    mask_of_neighbour,
    diagonal_top_left,
    mask_column_shift,
    tile_skipped,
    mask_word_overflow,
    mask_rows_of_buffer_width,
)
