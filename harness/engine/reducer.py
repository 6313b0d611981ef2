"""From a failing case to a small one that fails in the same way.

Order: requests, subtrees, nodes, row order, prefix, padding, heads, head dims, pages, window,
values; round after round until a whole round changes nothing. The result is then minimal: no
single request, node, prefix token, padded row or head can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import ValidationError
from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import MaskLayout, MaskMode
from treeproof.contract.shape import AttentionShape, Full
from treeproof.engine import simplify

Edit = Callable[[VerifyCase], VerifyCase]
SMALL_CHUNK = 4
"""Nodes are dropped in chunks of half the tree, a quarter and so on down to this, then singly."""
SIMPLER_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"order": "contiguous"},
    {"shared_prefix": 0},
    {"evicted": False},
    {"pad_slot": 0},
    {"page_table_pad": 0},
)


@dataclass(frozen=True)
class Reduction:
    """The smallest case found. `complete`: nothing was left to try before the limit."""

    case: VerifyCase
    evaluations: int
    complete: bool


def reduce(
    case: VerifyCase, still_fails: Callable[[VerifyCase], bool], limit: int = 300
) -> Reduction:
    """Reduce a case that is known to fail, with at most `limit` calls of `still_fails`.

    `still_fails` must hold for the very failure that is reduced and for no other. The result
    depends on nothing else.
    """
    search = _Search(case, still_fails, limit)
    search.attempt(_plain)
    while not search.exhausted:
        before = search.case
        for run_pass in _PASSES:
            run_pass(search)
        if search.case == before:
            break
    return Reduction(search.case, search.evaluations, not search.exhausted)


class _Search:
    """The smallest failing case so far, and what has been tried."""

    def __init__(
        self, case: VerifyCase, still_fails: Callable[[VerifyCase], bool], limit: int
    ) -> None:
        self.case = case
        self.evaluations = 0
        self.exhausted = False
        """A candidate was left untried because of the limit."""
        self._still_fails = still_fails
        self._limit = limit
        self._tried = {case.id}

    def attempt(self, edit: Edit) -> bool:
        """Take the edit if the edited case is valid, new, and fails still."""
        try:
            candidate = edit(self.case)
        except (ValueError, ValidationError):
            return False
        if candidate.id in self._tried:
            return False
        if self.evaluations >= self._limit:
            self.exhausted = True
            return False
        self._tried.add(candidate.id)
        self.evaluations += 1
        if not self._still_fails(candidate):
            return False
        self.case = candidate
        return True

    def lower(
        self, read: Callable[[VerifyCase], int], least: int, set_to: Callable[[int], Edit]
    ) -> None:
        """Lower a number as far as the failure allows; one less than the result has been tried."""
        if read(self.case) <= least or self.attempt(set_to(least)):
            return
        step = read(self.case) - least
        while step > 1:
            step = (step + 1) // 2
            while read(self.case) - step > least and self.attempt(set_to(read(self.case) - step)):
                pass


def _plain(case: VerifyCase) -> VerifyCase:
    """All that is not requests, nodes and prefix at its simplest, in one step."""
    return simplify.simplest_shape(simplify.simplest_layout(simplify.simplest_rows(case)))


def _on(b: int, edit: Callable[..., Request], *arguments: Any) -> Edit:
    """An edit of one request as an edit of the case."""
    return lambda case: simplify.with_request(case, b, edit(case.requests[b], *arguments))


def _requests(search: _Search) -> None:
    count = len(search.case.requests)
    for b in range(count):
        if search.attempt(partial(simplify.keep_requests, kept={b})):
            return
    for b in reversed(range(count)):
        kept = set(range(len(search.case.requests))) - {b}
        if kept:
            search.attempt(partial(simplify.keep_requests, kept=kept))


def _nodes(search: _Search) -> None:
    for b in range(len(search.case.requests)):
        _shrink_tree(search, b)


def _shrink_tree(search: _Search, b: int) -> None:
    """First nodes only, then without whole branches, then without chunks and single nodes."""
    search.lower(
        lambda case: _size(case, b), 1, lambda count: _on(b, simplify.keep_nodes, range(count))
    )
    node = 1
    while node < _size(search.case, b):
        leaf = not search.case.requests[b].tree.children(node)
        if leaf or not search.attempt(_on(b, simplify.without_subtree, node)):
            node += 1
    chunk = _size(search.case, b) // 2
    while chunk >= SMALL_CHUNK:
        _drop_chunks(search, b, chunk)
        chunk //= 2
    _drop_chunks(search, b, 1)
    for node in reversed(range(1, _size(search.case, b))):
        search.attempt(_on(b, simplify.hang_on_root, node))


def _size(case: VerifyCase, b: int) -> int:
    return len(case.requests[b].tree)


def _drop_chunks(search: _Search, b: int, chunk: int) -> None:
    end = _size(search.case, b)
    while end > 1:
        start = max(1, end - chunk)
        kept = [*range(start), *range(end, _size(search.case, b))]
        search.attempt(_on(b, simplify.keep_nodes, kept))
        end = start


def _rows(search: _Search) -> None:
    search.attempt(partial(simplify.each_request, edit=simplify.rows_in_node_order))
    for b in range(len(search.case.requests)):
        search.attempt(_on(b, simplify.rows_in_node_order))


def _prefix(search: _Search) -> None:
    search.attempt(partial(simplify.each_request, edit=simplify.without_prefix))
    for b in range(len(search.case.requests)):
        _lower_in_request(search, b, lambda request: request.prefix_len, simplify.with_prefix)


def _padding(search: _Search) -> None:
    for b in range(len(search.case.requests)):
        _lower_in_request(search, b, lambda request: request.pad_rows, simplify.with_pad_rows)


def _lower_in_request(
    search: _Search,
    b: int,
    read: Callable[[Request], int],
    edit: Callable[[Request, int], Request],
) -> None:
    search.lower(lambda case: read(case.requests[b]), 0, lambda value: _on(b, edit, value))


def _heads(search: _Search) -> None:
    while any(
        search.attempt(partial(simplify.with_shape, num_q_heads=q, num_kv_heads=kv))
        for q, kv in _fewer_heads(search.case.shape)
    ):
        pass
    for most in (8, 16, 32, 64, 128, 256):
        if search.attempt(partial(simplify.with_head_dims, most=most)):
            break


def _fewer_heads(shape: AttentionShape) -> Iterator[tuple[int, int]]:
    """Down to one head, one group, no groups, half; then one key head or one head a group less."""
    q, kv, group = shape.num_q_heads, shape.num_kv_heads, shape.group_size
    for fewer in (
        (1, 1),
        (group, 1),
        (kv, kv),
        (q // 2, kv // 2),
        (q - group, kv - 1),
        (q - kv, kv),
    ):
        if min(fewer) > 0:
            yield fewer


def _layout(search: _Search) -> None:
    if search.attempt(simplify.simplest_layout):
        return
    for changes in SIMPLER_LAYOUTS:
        search.attempt(partial(simplify.with_layout, **changes))
    for page_size in (1, 2, 16):
        if page_size < search.case.layout.page_size:
            search.attempt(partial(simplify.with_layout, page_size=page_size))
    search.attempt(simplify.smallest_cache)


def _window(search: _Search) -> None:
    if search.case.shape.window is None or search.attempt(
        partial(simplify.with_shape, visibility=Full())
    ):
        return
    search.lower(_width, 1, lambda width: partial(simplify.with_window, width=width))
    # A fault at the edge of the window needs the prefix and the width to shrink together.
    search.lower(_width, 1, lambda width: partial(simplify.with_window_and_prefixes, width=width))


def _width(case: VerifyCase) -> int:
    return case.shape.window or 0


def _values(search: _Search) -> None:
    for shape in ({"dtype": "float32"}, {"rotary": None}, {"scale": None}):
        search.attempt(partial(simplify.with_shape, **shape))
    search.attempt(lambda case: replace(case, mask=MaskLayout()))
    for mask in ({"mode": MaskMode.FULL_MASK}, {"slack": 0}, {"fill_prefix": True}):
        search.attempt(partial(simplify.with_mask, **mask))
    search.attempt(lambda case: replace(case, score_spread=1.0))
    search.attempt(lambda case: replace(case, seed=0))
    search.attempt(partial(simplify.each_request, edit=simplify.small_tokens))


_PASSES = (_requests, _nodes, _rows, _prefix, _padding, _heads, _layout, _window, _values)
