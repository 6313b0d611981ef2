"""Faults of a commit's move: accepted rows that stay, arrive in part, or land where others live."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.faults.moves import Moves, commits, move, moving
from treeproof.faults.smallest import CHAIN, FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

_FORK = case(request(FORK))
"""Accepting row 2 moves it to column 1."""
_SWAP = case(request(CHAIN, rows=(0, 2, 1)))
"""Accepting the whole chain exchanges rows 1 and 2."""
_COMPACTION = ("B068", "sgl-project/sglang#15360")


def _stays(m: Moves) -> None:
    """Nothing moves: the accepted rows are taken for the first ones."""


def _first_request(m: Moves) -> None:
    count = len(m.paths[0])
    for cache in m.caches:
        move(cache, m.sources[:count], m.targets[:count])


def _first_draft(m: Moves) -> None:
    kept = [j < 2 for path in m.paths for j in range(len(path))]
    for cache in m.caches:
        move(cache, _where(m.sources, kept), _where(m.targets, kept))


def _where(slots: list[int], kept: list[bool]) -> list[int]:
    return [slot for slot, keep in zip(slots, kept, strict=True) if keep]


def _only(which: int) -> Callable[[Moves], None]:
    def wrong(m: Moves) -> None:
        move(m.caches[which], m.sources, m.targets)

    return wrong


def _half_of_the_lanes(m: Moves) -> None:
    for cache in m.caches:
        move(cache[..., : cache.shape[2] // 2], m.sources, m.targets)


def _first_head(m: Moves) -> None:
    for cache in m.caches:
        move(cache[:, :1], m.sources, m.targets)


def _one_by_one(*, backwards: bool) -> Callable[[Moves], None]:
    """Row after row, each load after the store before it: what was overwritten is moved on."""

    def wrong(m: Moves) -> None:
        pairs = list(zip(m.sources, m.targets, strict=True))
        for source, target in reversed(pairs) if backwards else pairs:
            for cache in m.caches:
                cache[target] = cache[source].clone()

    return wrong


def _pages(cache: Tensor, size: int) -> Tensor:
    return cache.view(-1, size, *cache.shape[1:])


def _whole_pages(m: Moves) -> None:
    size = m.x.kv.page_size
    sources, targets = ([s // size for s in slots] for slots in (m.sources, m.targets))
    for cache in m.caches:
        move(_pages(cache, size), sources, targets)


def _slots_as_pages(m: Moves) -> None:
    """K moves rightly; V lies in a pool by pages, which is given the slots."""
    move(m.k_cache, m.sources, m.targets)
    pages = _pages(m.v_cache, m.x.kv.page_size)
    kept = [max(pair) < len(pages) for pair in zip(m.sources, m.targets, strict=True)]
    move(pages, _where(m.sources, kept), _where(m.targets, kept))


def _pool_without_move(m: Moves) -> None:
    """A pool of one kind has a move, the pool beside it was never given one."""
    if m.x.kv.page_size > 1 and m.sources != m.targets:
        raise AttributeError("'HybridPool' object has no attribute 'move_kv_cache'")
    for cache in m.caches:
        move(cache, m.sources, m.targets)


def _reads_all_rows(m: Moves) -> None:
    """As many entries of accept_index are read as there are rows: it has S + 1 a request."""
    entries = m.accepted.accept_index.flatten()[torch.arange(len(m.x.out_cache_loc))]
    _to_fronts(m, entries.tolist())


def _stride_of_rows(m: Moves) -> None:
    """Entries of a request are looked for at its first row, not at its line of the table."""
    flat, width = m.accepted.accept_index.flatten().tolist(), m.accepted.accept_index.shape[1]
    flat += [-1] * (len(m.x.out_cache_loc) + width)
    _to_fronts(m, [row for first in m.firsts[:-1] for row in flat[first : first + width]])


def _to_fronts(m: Moves, entries: list[int]) -> None:
    width = m.accepted.accept_index.shape[1]
    pairs = [
        (row, m.firsts[at // width] + at % width)
        for at, row in enumerate(entries)
        if row >= 0 and m.firsts[at // width] + at % width < m.firsts[-1]
    ]
    for cache in m.caches:
        move(cache, m.slots([row for row, _ in pairs]), m.slots([front for _, front in pairs]))


def _one_column_late(m: Moves) -> None:
    rows = [
        (row, first + j + 1)
        for first, end, path in zip(m.firsts, m.firsts[1:], m.paths, strict=False)
        for j, row in enumerate(path)
        if first + j + 1 < end
    ]
    for cache in m.caches:
        move(cache, m.slots([row for row, _ in rows]), m.slots([front for _, front in rows]))


def _without_root(m: Moves) -> None:
    """The drafts are kept from column P on, as if the root had been committed before."""
    rows = [
        (row, first + j)
        for first, path in zip(m.firsts, m.paths, strict=False)
        for j, row in enumerate(path[1:])
    ]
    for cache in m.caches:
        move(cache, m.slots([row for row, _ in rows]), m.slots([front for _, front in rows]))


def _to_neighbour(m: Moves) -> None:
    fronts = [*m.firsts[1:-1], m.firsts[0]]
    rows = [
        (row, front + j)
        for front, path in zip(fronts, m.paths, strict=True)
        for j, row in enumerate(path)
        if front + j < m.firsts[-1]
    ]
    for cache in m.caches:
        move(cache, m.slots([row for row, _ in rows]), m.slots([front for _, front in rows]))


def _padding_too(m: Moves) -> None:
    """The -1 after a path is an index as well: the last row of the batch is moved behind it."""
    extra = [
        first + j
        for first, path in zip(m.firsts, m.paths, strict=False)
        for j in range(len(path), m.accepted.accept_index.shape[1])
        if first + j < m.firsts[-1]
    ]
    for cache in m.caches:
        last = m.slots([m.firsts[-1] - 1] * len(extra))
        move(cache, m.sources + last, m.targets + m.slots(extra))


def _misaligned(m: Moves) -> None:
    """Sources come without padding, targets with it: after a short path they are out of step."""
    width, targets = m.accepted.accept_index.shape[1], []
    for first, path in zip(m.firsts, m.paths, strict=False):
        targets += m.slots([first + j for j in range(len(path))])
        targets += [m.x.kv.pad_slot] * (width - len(path))
    kept = [target >= 0 for target in targets[: len(m.sources)]]
    for cache in m.caches:
        move(cache, _where(m.sources, kept), _where(targets[: len(m.sources)], kept))


def _wipes_last(m: Moves) -> None:
    """Rejected rows are cleared from one column too early on."""
    for cache in m.caches:
        move(cache, m.sources, m.targets)
        for first, end, path in zip(m.firsts, m.firsts[1:], m.paths, strict=False):
            cache[m.slots(list(range(first + len(path) - 1, end)))] = 0


def _from_column(by: int) -> Callable[[Moves], None]:
    """Columns are counted from P + `by` on in the request's line of the table."""

    def wrong(m: Moves) -> None:
        targets: list[int] = []
        lines = m.x.req_to_token[m.x.request_slots].tolist()
        for line, prefix, path in zip(lines, m.x.seq_lens.tolist(), m.paths, strict=True):
            columns = range(prefix + by, prefix + by + len(path))
            targets += [line[column] if column >= 0 else -1 for column in columns]
        kept = [target >= 0 for target in targets]
        for cache in m.caches:
            move(cache, _where(m.sources, kept), _where(targets, kept))

    return wrong


def _reads_table(backend: Backend) -> bool:
    return commits(backend) and {"req_to_token", "request_slots"} <= backend.consumes


_WRONG: tuple[Wrong[Callable[[Moves], None]], ...] = (
    Wrong(
        "not-compacted", "", "the accepted rows stay where they were verified", "not-compacted",
        _stays, _FORK, (*_COMPACTION, "openvinotoolkit/openvino#38079"),
    ),
    Wrong(
        "not-compacted", "first-request-moved", "only the first request's path is moved",
        "half-moved", _first_request, case(request(), request(FORK)), _COMPACTION,
    ),
    Wrong(
        "not-compacted", "first-draft-moved", "only the first accepted draft is moved",
        "half-moved", _first_draft, _SWAP, _COMPACTION,
    ),
    Wrong(
        "one-cache-moved", "k", "keys of the accepted path are moved, values are not",
        "one-cache-only", _only(0), _FORK, ("B069",),
    ),
    Wrong(
        "one-cache-moved", "v", "values of the accepted path are moved, keys are not",
        "one-cache-only", _only(1), _FORK, ("B069",),
    ),
    Wrong(
        "half-moved", "lanes", "the stride is that of a narrower type: half of each row is moved",
        "half-moved", _half_of_the_lanes, _FORK, ("B070",),
    ),
    Wrong(
        "half-moved", "heads", "only the first KV head of a row is moved", "half-moved",
        _first_head, case(request(FORK), heads=(2, 2)), ("B070",),
    ),
    Wrong(
        "moved-in-place", "forwards",
        "rows are moved one by one from the front, over rows that have yet to move",
        "moved-in-place", _one_by_one(backwards=False), _SWAP, ("sgl-project/sglang#15360",),
    ),
    Wrong(
        "moved-in-place", "backwards",
        "rows are moved one by one from the end, over rows that have yet to move",
        "moved-in-place", _one_by_one(backwards=True), _SWAP, ("sgl-project/sglang#15360",),
    ),
    Wrong(
        "page-moved", "whole", "the whole page of an accepted row is moved",
        "page-moved-for-token", _whole_pages, case(request(FORK), page_size=2), ("B069",),
    ),
    Wrong(
        "page-moved", "slot-for-page", "a pool by pages is given slots where it takes pages",
        "page-moved-for-token", _slots_as_pages,
        case(request(FORK), page_size=2, spare_pages=3), ("B069",),
    ),
    Wrong(
        "pool-without-move", "", "a pool of pages has no move for single rows", "raises",
        _pool_without_move, case(request(FORK), page_size=2), ("B071",), "contract",
    ),
    Wrong(
        "accept-index-over-read", "rows",
        "as many entries of accept_index are read as there are rows", "raises",
        _reads_all_rows, _FORK, ("B067",), "contract",
    ),
    Wrong(
        "accept-index-over-read", "stride",
        "lines of accept_index are taken to be as wide as the tree", "over-read",
        _stride_of_rows, case(request(), request((-1, 0))), ("B067", *_COMPACTION),
    ),
    Wrong(
        "commit-column-off-by-one", "up", "the path is moved to the columns after P",
        "slot-off-by-one", _one_column_late, case(request((-1, 0))), ("B055",),
    ),
    Wrong(
        "commit-column-off-by-one", "root-dropped", "drafts are kept from P on, over the root",
        "slot-off-by-one", _without_root, case(request((-1, 0))), ("B055",),
    ),
    Wrong(
        "commit-column-off-by-one", "from-prefix-end",
        "columns are counted from the last prefix key on", "slot-off-by-one",
        _from_column(-1), case(request(prefix=1)), ("B055",), applies=_reads_table,
    ),
    Wrong(
        "commit-to-neighbour", "", "a request's path is moved to the slots of the request after it",
        "slot-of-neighbour", _to_neighbour, case(request(), request()), ("B090",),
    ),
    Wrong(
        "commit-moves-padding", "", "the -1 after a path is taken for the last row, and moved",
        "over-read", _padding_too, case(request(), request((-1, 0))), ("B067",),
    ),
    Wrong(
        "commit-lists-misaligned", "",
        "sources are listed without padding and targets with it", "lists-out-of-step",
        _misaligned, case(request(), request((-1, 0))), ("B067",),
    ),
    Wrong(
        "rejected-wiped", "", "clearing the rejected rows clears the last accepted one too",
        "boundary-off-by-one", _wipes_last, case(request()), ("B055",),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG, stage="commit", identity="kv", evidence="measured", plant=moving, applies=commits
)
