"""From a failing case to a small one that fails in the same way.

Order: what is dear to check goes first (requests, steps, prefix, pages, subtrees, nodes), in big cuts and
then in small ones; then row order, padding, heads, head dims, window, values. Round after round,
until a whole round changes nothing and a last sweep has tried each single removal: the result is
then minimal, for no single request, step, node, prefix token, padded row, head or page can be left out.
Last come exchanges, in which more goes than comes; each that holds is followed by such rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import MaskLayout, MaskMode
from treeproof.contract.shape import AttentionShape, Full
from treeproof.engine import scripted, simplify
from treeproof.engine.exchanges import exchanges
from treeproof.engine.first_cuts import cut_first
from treeproof.engine.removals import Edit, one_head_less, single_removals
from treeproof.engine.search import Search

SMALL_CHUNK = 4
"""Nodes are dropped in chunks of half the tree, a quarter and so on down to this, then singly."""
FEW_NODES = 32
"""So many nodes at most are hung on the root one by one: it makes a tree plainer, not smaller."""
EXCHANGES = 48
"""So many exchanges at most are tried on one minimal case."""
SIMPLER_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"storage": "NHD"},
    {"order": "contiguous"},
    {"shared_prefix": 0},
    {"evicted": False},
    {"pad_slot": 0},
    {"page_table_pad": 0},
)

SIMPLER_SHAPES: tuple[dict[str, Any], ...] = (
    {"dtype": "float32"},
    {"rotary": None},
    {"scale": None},
    {"softcap": None},
    {"sinks": False},
    {"alibi": False},
    {"kv_dtype": None},
)


@dataclass(frozen=True)
class Reduction:
    """The smallest case found.

    `complete`: minimal; each single removal from this very case was tried, and none failed alike.
    """

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
    search = Search(case, still_fails, limit)
    cut_first(search)
    minimal = _settled(search)
    smallest = search.case
    # Where the limit ends the rounds after an exchange, the case before it is the minimal one.
    while minimal and _exchanged(search) and _settled(search):
        smallest = search.case
    return Reduction(smallest, search.evaluations, minimal)


def _settled(search: Search) -> bool:
    """Round after round; whether the case is minimal now, and not only the limit reached."""
    minimal = False
    search.thorough = True
    while not minimal and not search.exhausted:
        before = search.case
        for run_pass in _PASSES:
            run_pass(search)
        search.thorough = False
        minimal = search.case == before and _is_minimal(search)
    return minimal


def _exchanged(search: Search) -> bool:
    """Whether something could go in exchange for something less."""
    before = search.evaluations
    for edit in exchanges(search.case):
        if search.attempt(edit):
            return True
        if search.exhausted or search.evaluations - before >= EXCHANGES:
            break
    return False


def _is_minimal(search: Search) -> bool:
    """Whether each single removal has been tried on this very case and none of them held.

    Takes the first that holds: the case is then smaller and must be gone through once more.
    """
    for edit in single_removals(search.case):
        if search.attempt(edit, known=True):
            search.thorough = True
            return False
    return not search.exhausted


def _on(b: int, edit: Callable[..., Request], *arguments: Any) -> Edit:
    """An edit of one request as an edit of the case."""
    return lambda case: simplify.with_request(case, b, edit(case.requests[b], *arguments))


def _requests(search: Search) -> None:
    count = len(search.case.requests)
    for b in range(count):
        if search.attempt(partial(simplify.keep_requests, kept={b})):
            return
    for b in reversed(range(count)):
        kept = set(range(len(search.case.requests))) - {b}
        if kept:
            search.attempt(partial(simplify.keep_requests, kept=kept))
    _one_for_two(search)


def _one_for_two(search: Search) -> None:
    """Who comes next may be who was there before, who comes again."""
    pairs = permutations(range(len(search.case.requests) if search.case.script else 0), 2)
    for kept, gone in pairs:
        if search.attempt(partial(simplify.as_one, kept=kept, gone=gone)):
            return


def _steps(search: Search) -> None:
    """Chunks of the script, then single steps, then what a step does."""
    chunk = len(search.case.script) // 2
    while chunk:
        end = len(search.case.script)
        while end > 0:
            start = max(0, end - chunk)
            search.attempt(partial(scripted.without_steps, start=start, end=end))
            end = start
        chunk //= 2
    for i in range(len(search.case.script)):
        while any(
            search.attempt(partial(scripted.with_step, index=i, step=plainer))
            for plainer in list(scripted.plainer_steps(search.case.script[i]))
        ):
            pass


def _nodes_of_all(search: Search) -> None:
    """Every request keeps its first nodes only, as many in each: some failures need equal sizes."""
    if len(search.case.requests) == 1:
        return

    def first(count: int) -> Edit:
        return partial(
            simplify.each_request,
            edit=lambda request: simplify.keep_nodes(request, range(min(count, request.num_nodes))),
        )

    search.lower(lambda case: max(r.num_nodes for r in case.requests), 1, first)


def _nodes(search: Search) -> None:
    for b in range(len(search.case.requests)):
        _shrink_tree(search, b)


def _shrink_tree(search: Search, b: int) -> None:
    """First nodes only, then without whole branches, then without chunks and single nodes."""
    before = _size(search.case, b)
    search.lower(
        lambda case: _size(case, b), 1, lambda count: _on(b, simplify.keep_nodes, range(count))
    )
    unchanged = _size(search.case, b) == before
    if not search.thorough and unchanged and not _drop_chunks(search, b, 1):
        return
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
    if not search.attempt(_on(b, simplify.hang_on_root, *range(1, _size(search.case, b)))):
        for node in reversed(range(1, min(FEW_NODES, _size(search.case, b)))):
            search.attempt(_on(b, simplify.hang_on_root, node))


def _size(case: VerifyCase, b: int) -> int:
    return len(case.requests[b].tree)


def _drop_chunks(search: Search, b: int, chunk: int) -> bool:
    """Whether any chunk could go."""
    before = end = _size(search.case, b)
    while end > 1:
        start = max(1, end - chunk)
        kept = [*range(start), *range(end, _size(search.case, b))]
        search.attempt(_on(b, simplify.keep_nodes, kept))
        end = start
    return _size(search.case, b) < before


def _rows(search: Search) -> None:
    search.attempt(partial(simplify.each_request, edit=simplify.rows_in_node_order))
    for b in range(len(search.case.requests)):
        search.attempt(_on(b, simplify.rows_in_node_order))


def _prefix(search: Search) -> None:
    search.attempt(partial(simplify.each_request, edit=simplify.without_prefix))
    for b in range(len(search.case.requests)):
        if search.thorough:
            _clear_high_bits(search, b)
        _lower_in_request(search, b, lambda request: request.prefix_len, simplify.with_prefix)


def _clear_high_bits(search: Search, b: int) -> None:
    """By powers of two, the largest first: what matters may be the rest that a page leaves."""
    for bit in reversed(range(search.case.requests[b].prefix_len.bit_length())):
        length = search.case.requests[b].prefix_len & ~(1 << bit)
        search.attempt(_on(b, simplify.with_prefix, length))


def _padding(search: Search) -> None:
    for b in range(len(search.case.requests)):
        _lower_in_request(search, b, lambda request: request.pad_rows, simplify.with_pad_rows)


def _lower_in_request(
    search: Search,
    b: int,
    read: Callable[[Request], int],
    edit: Callable[[Request, int], Request],
) -> None:
    search.lower(lambda case: read(case.requests[b]), 0, lambda value: _on(b, edit, value))


def _heads(search: Search) -> None:
    while any(
        search.attempt(partial(simplify.with_shape, num_q_heads=q, num_kv_heads=kv))
        for q, kv in _fewer_heads(search.case.shape)
    ):
        pass
    for most in (8, 16, 32, 64, 128, 256):
        if search.attempt(partial(simplify.with_head_dims, most=most)):
            break


def _fewer_heads(shape: AttentionShape) -> Iterator[tuple[int, int]]:
    """Down to one head, one group, no groups, half; then one head less of either kind."""
    q, kv, group = shape.num_q_heads, shape.num_kv_heads, shape.group_size
    for fewer in (
        (1, 1),
        (group, 1),
        (kv, kv),
        (q // 2, kv // 2),
        *one_head_less(shape),
    ):
        if min(fewer) > 0:
            yield fewer


def _layout(search: Search) -> None:
    if search.attempt(simplify.simplest_layout):
        return
    for changes in SIMPLER_LAYOUTS:
        search.attempt(partial(simplify.with_layout, **changes))
    page = search.case.layout.page_size
    for halvings in range(page.bit_length() - 1, 0, -1):
        if search.attempt(partial(simplify.with_layout, page_size=page >> halvings)):
            break
    if search.case.layout.page_size > 1:
        search.attempt(simplify.with_half_pages_and_prefixes)
    search.lower(
        lambda case: case.layout.num_slots // case.layout.page_size,
        search.case.pages_needed,
        lambda count: partial(simplify.with_pages, count=count),
    )


def _window(search: Search) -> None:
    if search.case.shape.window is None or search.attempt(
        partial(simplify.with_shape, visibility=Full())
    ):
        return
    search.lower(_width, 1, lambda width: partial(simplify.with_window, width=width))
    # A fault at the edge of the window needs the prefix or the depth to shrink with the width.
    search.lower(_width, 1, lambda width: partial(simplify.with_window_and_prefixes, width=width))
    search.lower(_depth, 0, lambda depth: partial(simplify.with_window_and_depth, depth=depth))


def _width(case: VerifyCase) -> int:
    return case.shape.window or 0


def _depth(case: VerifyCase) -> int:
    return max(max(request.tree.depth) for request in case.requests)


def _values(search: Search) -> None:
    for shape in SIMPLER_SHAPES:
        search.attempt(partial(simplify.with_shape, **shape))
    search.attempt(lambda case: replace(case, mask=MaskLayout()))
    for mask in ({"mode": MaskMode.FULL_MASK}, {"slack": 0}, {"fill_prefix": True}):
        search.attempt(partial(simplify.with_mask, **mask))
    search.attempt(lambda case: replace(case, score_spread=1.0))
    search.attempt(lambda case: replace(case, seed=0))
    if not search.attempt(partial(simplify.each_request, edit=simplify.small_tokens)):
        search.attempt(partial(simplify.each_request, edit=simplify.same_prefix_tokens))


_PASSES = (
    _requests,
    _steps,
    _prefix,
    _layout,
    _nodes_of_all,
    _nodes,
    _rows,
    _padding,
    _heads,
    _window,
    _values,
)
