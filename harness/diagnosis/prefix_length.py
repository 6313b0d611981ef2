"""Keys: a prefix length that counts the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis, reading
from treeproof.diagnosis.listing import with_prefix
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend", "forward")


@hypothesis(
    "root-inside-prefix",
    "the prefix length counts the root, so every row reads one column too many as prefix",
    *_GROUPS, "lengths",
)  # fmt: skip
def root_inside_prefix(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground

    def with_root(row: Row) -> list[Key]:
        return [*ground.prefix(row.b), ground.own(row.b, 0)]

    longer = tuple(length + 1 for length in right.lengths)
    plain = with_prefix(right, with_root)
    yield "", replace(plain, lengths=longer)

    def later(row: Row) -> list[Key]:
        """Rows are looked for after the longer prefix: each key is the next column's."""
        path = [ground.key(row.b, row.prefix + 1 + r, ground.own(row.b, r).at) for r in row.path]
        return [*with_root(row), *path]

    shifted = reading(right, later)
    yield "and rows one column later", replace(shifted, lengths=longer)
    window = ground.window
    if window is not None:
        for detail, world in (("", plain), (" and rows one column later", shifted)):
            seen = tuple(
                tuple(k for k in keys if row.position + 1 - window < k.at)
                for row, keys in zip(ground.rows, world.uncut, strict=True)
            )
            yield f"and in the window's start{detail}", replace(world, seen=seen, lengths=longer)

            def tree_later(row: Row, keys: tuple[Key, ...]) -> tuple[Key, ...]:
                """The path counts from P + 1 on, so that its keys lie one further."""
                prefix, path = keys[: row.prefix + 1], keys[row.prefix + 1 :]
                low = row.position + 1 - window
                return (
                    *(k for k in prefix if low < k.at),
                    *(k for k in path if low < k.at + 1),
                )

            seen = tuple(
                tree_later(row, keys) for row, keys in zip(ground.rows, world.uncut, strict=True)
            )
            yield (
                f"and in the window's start, the path counted from there{detail}",
                replace(world, seen=seen, lengths=longer),
            )
    # In a full mask the prefix part of each line is one cell longer, so all lines lie askew.
    for detail, columns in (("", 0), (" with rows one column later", 1)):
        askew = _askew(right, columns)
        if askew is not None:
            yield f"in the width of a full mask{detail}", replace(askew, lengths=longer)
    cut = _without_last_row(right)
    yield "and the tree ends one row early", replace(cut, lengths=longer)


def _without_last_row(right: World) -> World:
    """P + 1 keys as prefix, and of N + P in all only N - 1 are left for the rows."""
    ground = right.ground

    def keys(row: Row) -> list[Key]:
        n = len(ground.by_request[row.b])
        path = [ground.key(row.b, row.prefix + 1 + r) for r in row.path if r < n - 1]
        return [*ground.prefix(row.b), ground.own(row.b, 0), *path]

    return reading(right, keys)


def _askew(right: World, later: int) -> World | None:
    """The full masks of the batch, read with lines of P + 1 + R cells; None where cells lack."""
    ground = right.ground
    if ground.case.mask.mode.name != "FULL_MASK" or not ground.case.mask.fill_prefix:
        return None
    cells: list[bool] = []
    starts = []
    for b, request in enumerate(ground.requests):
        starts.append(len(cells))
        rows = ground.by_request[b]
        paths = [set(row.path) for row in rows] + [{0}] * request.pad_rows
        for path in paths:
            cells += [True] * request.prefix_len
            cells += [column in path for column in range(request.num_rows)]
    lists = []
    for row in ground.rows:
        request = ground.requests[row.b]
        width = request.prefix_len + 1 + request.num_rows
        at = starts[row.b] + row.row * width + request.prefix_len + 1
        if at + request.num_rows > len(cells):
            return None
        own = [r for r in range(request.num_nodes) if cells[at + r]]
        tree = [ground.key(row.b, row.prefix + later + r, ground.own(row.b, r).at) for r in own]
        lists.append((*ground.prefix(row.b), ground.own(row.b, 0), *tree))
    by_flat = {row.flat: keys for row, keys in zip(ground.rows, lists, strict=True)}
    return reading(right, lambda row: by_flat[row.flat])


PREFIX_LENGTH: tuple[Hypothesis, ...] = (root_inside_prefix,)
