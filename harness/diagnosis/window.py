"""Sliding windows: where the cut is, if not at logical index P + depth - W."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treeproof.diagnosis.evidence import Group
from treeproof.diagnosis.ground import Key, Row
from treeproof.diagnosis.hypothesis import Hypothesis, cutting, hypothesis, reading
from treeproof.diagnosis.world import World

_GROUPS: tuple[Group, ...] = ("tables", "attend")
Kept = Callable[[Row, tuple[Key, ...]], Iterable[Key]]


@hypothesis("window-dropped", "the sliding window is not applied", *_GROUPS)
def window_dropped(right: World) -> Iterator[tuple[str, World]]:
    window = right.ground.window
    if window is None:
        return
    yield "", cutting(right, lambda row, keys: keys)
    yield (
        "in the prefix",
        cutting(
            right,
            lambda row, keys: [
                k for k in keys if k.at < row.prefix or row.position - window < k.at
            ],
        ),
    )
    yield (
        "in the tree",
        cutting(
            right,
            lambda row, keys: [
                k for k in keys if k.at >= row.prefix or row.position - window < k.at
            ],
        ),
    )
    yield (
        "past the root's row",
        cutting(right, lambda row, keys: [k for k in keys if row.prefix - window < k.at]),
    )


@hypothesis("window-by-row", "the window is cut by row number instead of depth", *_GROUPS)
def window_by_row(right: World) -> Iterator[tuple[str, World]]:
    ground, window = right.ground, right.ground.window
    if window is None:
        return
    yield (
        "",
        cutting(right, lambda row, keys: [k for k in keys if row.prefix + row.row - window < k.at]),
    )

    def at_least_itself(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        """A list is cut at its last key at the latest."""
        own = ground.own(row.b, row.row)
        return [k for k in keys if k == own or row.prefix + row.row - window < k.at]

    yield "its own key kept", cutting(right, at_least_itself)

    def columns(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        """Keys of the tree count by their row as well."""
        place = {slot: c for c, slot in enumerate(ground.scene.ledger.columns[row.b])}
        at = [place.get(k.v, k.at) for k in keys]
        return [k for k, c in zip(keys, at, strict=True) if row.prefix + row.row - window < c]

    yield "and keys by their columns", cutting(right, columns)

    def only_keys(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        place = {slot: c for c, slot in enumerate(ground.scene.ledger.columns[row.b])}
        return [k for k in keys if row.position - window < place.get(k.v, k.at)]

    yield "for keys alone", cutting(right, only_keys)


@hypothesis("window-off-by-one", "the window is one key too wide or too narrow", *_GROUPS)
def window_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    window = right.ground.window
    if window is None:
        return
    for by, name in ((1, "too wide"), (-1, "too narrow")):
        width = window + by

        def kept(row: Row, keys: tuple[Key, ...], width: int = width) -> list[Key]:
            return [k for k in keys if row.position - width < k.at]

        yield name, cutting(right, kept)

        def in_prefix(row: Row, keys: tuple[Key, ...], width: int = width) -> list[Key]:
            return [
                k for k in keys if row.position - (width if k.at < row.prefix else window) < k.at
            ]

        yield f"{name} in the prefix", cutting(right, in_prefix)

        def in_tree(row: Row, keys: tuple[Key, ...], width: int = width) -> list[Key]:
            return [
                k for k in keys if row.position - (width if k.at >= row.prefix else window) < k.at
            ]

        yield f"{name} in the tree", cutting(right, in_tree)


@hypothesis(
    "window-by-slot", "the window is cut by physical slot instead of logical index", *_GROUPS
)
def window_by_slot(right: World) -> Iterator[tuple[str, World]]:
    ground, window = right.ground, right.ground.window
    if window is None:
        return

    def by_own_slot(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        own = ground.own(row.b, row.row).v
        return [k for k in keys if own - window < k.v]

    def below_own_slot(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        own = ground.own(row.b, row.row).v
        return [k for k in keys if own - window < k.v <= own]

    def by_index(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        return [k for k in keys if row.position - window < k.v]

    def up_to_index(row: Row, keys: tuple[Key, ...]) -> list[Key]:
        return [k for k in keys if row.position - window < k.v <= row.position]

    yield "seen from the row's own slot", cutting(right, by_own_slot)
    yield "seen from the row's own slot, later slots hidden", cutting(right, below_own_slot)
    yield "seen from the row's logical index", cutting(right, by_index)
    yield "seen from the row's logical index, later slots hidden", cutting(right, up_to_index)


@hypothesis(
    "gather-from-start",
    "the prefix is clipped to the window's length, but gathered from its first key on",
    *_GROUPS,
)
def gather_from_start(right: World) -> Iterator[tuple[str, World]]:
    ground, window = right.ground, right.ground.window
    if window is None:
        return

    def gathered(row: Row, keys: tuple[Key, ...], kept: int) -> list[Key]:
        prefix = ground.prefix(row.b)[: max(0, min(kept, row.prefix))]
        own = [k for k in keys if k.at >= row.prefix and row.position - window < k.at]
        return [*prefix, *own]

    choices: dict[str, Callable[[Row], int]] = {
        "": lambda row: window - row.depth - 1,
        "W keys": lambda row: window,
        "W - 1 keys": lambda row: window - 1,
    }
    for detail, kept in choices.items():
        yield (
            detail,
            cutting(
                right,
                lambda row, keys, kept=kept: gathered(row, keys, kept(row)),  # type: ignore[misc]
            ),
        )

    def whole_list(row: Row, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        """The first W keys of everything that the row would read."""
        return keys[:window]

    yield "prefix and path in one list", cutting(right, whole_list)

    for detail, page in (("", 1), (" in whole pages", ground.page)):

        def shared(row: Row, keys: tuple[Key, ...], page: int = page) -> list[Key]:
            """What every row's window holds of the prefix is taken from its first key on."""
            deepest = max(r.depth for r in ground.by_request[row.b])
            start = max(0, row.prefix + deepest + 1 - window)
            start = min(row.prefix, -(-start // page) * page)
            own = [k for k in keys if row.position - window < k.at]
            rest = [k for k in own if not start <= k.at < row.prefix]
            return [*ground.prefix(row.b)[: row.prefix - start], *rest]

        yield f"the part that all rows share{detail}", cutting(right, shared)

    def with_whole_path(row: Row) -> list[Key]:
        prefix = ground.prefix(row.b)[: max(0, window - 1)]
        return [*prefix, *(ground.own(row.b, r) for r in row.path)]

    uncut = reading(right, with_whole_path)
    yield "W - 1 keys, and the whole path", cutting(uncut, lambda row, keys: keys)


WINDOW: tuple[Hypothesis, ...] = (
    window_dropped,
    window_by_row,
    window_off_by_one,
    gather_from_start,
    window_by_slot,
)
