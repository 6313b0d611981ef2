"""Event classes: what a case exercises, read from the case itself and never from how it was drawn."""

from __future__ import annotations

from collections.abc import Iterator

from treeproof.contract.case import MaskMode, Request, VerifyCase
from treeproof.contract.script import Admit, Evict, Finish, Params, Prefill, Round
from treeproof.contract.tree import CandidateTree

EDGE_ROWS = (31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Row counts around the widths of mask words, tiles and warps; present in every profile."""

LONG = 512
"""Keys from which on a prefix counts as long."""

CONTEXT_LIMITS = frozenset(1 << bits for bits in range(9, 18))
"""Context lengths, 512 to 131,072; at a limit the request has that many columns, or one fewer."""

_TREES = (
    "root-only",
    "chain",
    "star",
    "comb",
    "fan",
    "balanced",
    "caterpillar",
    "unequal-depths",
    "branching",
)
_MASKS = {
    MaskMode.FULL_MASK: "mask:full",
    MaskMode.QLEN_ONLY: "mask:tree-only",
    MaskMode.QLEN_ONLY_BITPACKING: "mask:bit-packed",
}

EVENT_CLASSES: tuple[str, ...] = (
    *(f"tree:{shape}" for shape in _TREES),
    "tokens:equal-cousins",
    *(f"rows:{rows}" for rows in EDGE_ROWS),
    *(f"order:{order}" for order in ("breadth-first", "depth-first", "parent-first")),
    "order:child-first",
    *(f"batch:{count}" for count in (1, 2, 3, 4)),
    "batch:ragged",
    "batch:padded",
    *(f"prefix:{kind}" for kind in ("zero", "one", "page-1", "page", "page+1")),
    *(f"prefix:{kind}" for kind in ("window-1", "window", "window+1", "context-limit", "long")),
    *(f"window:{kind}" for kind in ("none", "width-1", "cuts-tree", "cuts-prefix", "cuts-nothing")),
    *(f"page:{size}" for size in (1, 2, 16, 64)),
    "page:straddle",
    "page:tree-spans",
    *(f"layout:{order}" for order in ("contiguous", "reversed", "interleaved", "shuffled")),
    "layout:aliased",
    "layout:evicted",
    "layout:no-pad-slot",
    *(f"table-pad:{kind}" for kind in ("zero", "none", "slot")),
    *_MASKS.values(),
    "mask:slack",
    "mask:unfilled-prefix",
    *(f"heads:{kind}" for kind in ("multi-head", "grouped", "multi-query")),
    "head-dim:below-64",
    "head-dim:64-up",
    "head-dim:values-differ",
    "rotary:on",
    "rotary:off",
    *(f"dtype:{dtype}" for dtype in ("float32", "bfloat16", "float16")),
    *(f"cache:{kind}" for kind in ("unquantised", "float8_e4m3fn", "int8")),
    "scores:custom-scale",
    "scores:softcap",
    "scores:alibi",
    "scores:sinks",
    "scores:spread",
)
"""All that every backend can have, in the order they are shown."""

LAYOUT_CLASSES = tuple(f"caches:{storage}" for storage in ("HND", "layered", "interleaved"))
"""Cases of those backends that take caches which are not contiguous."""

SCRIPT_CLASSES = tuple(
    f"rounds:{kind}"
    for kind in (
        "two", "more", "chunked-prefill", "shared-prefix", "none-accepted", "all-accepted",
        "several-requests", "one-stops", "limit", "stop-tokens", "adjusted-logits", "sampled", "sampled-chain", "pages-behind-the-window", "window-in-pages",
        "quantised-cache", "sinks", "alibi", "softcap", "one-leaves", "cancelled", "comes-again", "evicted", "idle-requests",
    )
)  # fmt: skip
"""Of cases with a script."""

_RANK = {name: rank for rank, name in enumerate((*EVENT_CLASSES, *LAYOUT_CLASSES))}


def tags(case: VerifyCase) -> tuple[str, ...]:
    """Event classes of a case, in the order of EVENT_CLASSES, and then of LAYOUT_CLASSES."""
    if case.script:  # what its requests are in a single step, they are not here
        found = set(_script(case))
        return tuple(name for name in SCRIPT_CLASSES if name in found)
    found = {*_shape(case), *_layout(case), *_batch(case), f"batch:{len(case.requests)}"}
    for b, request in enumerate(case.requests):
        found.update(_request(request))
        found.update(_lengths(case, request))
        found.update(_windows(case, b))
    # Batches, pages and row counts that are no class are left out.
    return tuple(sorted((tag for tag in found if tag in _RANK), key=_RANK.__getitem__))


def _script(case: VerifyCase) -> Iterator[str]:
    rounds = [step for step in case.script if isinstance(step, Round)]
    yield "rounds:two" if len(rounds) == 2 else "rounds:more"
    if case.layout.shared_prefix:
        yield "rounds:shared-prefix"
    shape, layout = case.shape, case.layout
    further = {
        "pages-behind-the-window": layout.evicted,
        "window-in-pages": shape.window is not None and layout.page_size > 1,
        "quantised-cache": shape.kv_dtype is not None,
        "sinks": shape.sinks,
        "alibi": shape.alibi,
        "softcap": shape.softcap is not None,
    }
    yield from (f"rounds:{name}" for name, there in further.items() if there)
    for one in rounds:
        if len(one.turns) > 1:
            yield "rounds:several-requests"
        if one.idle:
            yield "rounds:idle-requests"
        if one.sample is not None:
            kind = "" if one.sample == "target-only" else f"-{one.sample}"
            yield f"rounds:sampled{kind}"
        for turn in one.turns:
            if turn.stop is not None:
                yield "rounds:one-stops"
            tree = case.requests[turn.request].tree
            nodes = len(tree) if turn.nodes is None else turn.nodes
            if turn.accept == 0 and nodes > 1:
                yield "rounds:none-accepted"
            if turn.accept and tree.depth[turn.accept] == max(tree.depth[:nodes]):
                yield "rounds:all-accepted"
    left: dict[int, int] = {}
    gone: set[int] = set()
    for step in case.script:
        if isinstance(step, Admit):
            yield from _params(step.params)
            left[step.request] = case.requests[step.request].prefix_len
            if step.request in gone:
                yield "rounds:comes-again"
        elif isinstance(step, Prefill) and step.request in left:
            left[step.request] -= step.tokens
            if left[step.request] > 0:
                yield "rounds:chunked-prefill"
        elif isinstance(step, Finish) and step.request in left:
            gone.add(step.request)
            yield "rounds:cancelled" if left.pop(step.request) > 0 else "rounds:one-leaves"
        elif isinstance(step, Evict):
            yield "rounds:evicted"


def _params(params: Params) -> Iterator[str]:
    if params.limit is not None:
        yield "rounds:limit"
    if params.stop_tokens:
        yield "rounds:stop-tokens"
    if params.adjusts:
        yield "rounds:adjusted-logits"
    if params.bias:
        yield "rounds:bias"
    if params.min_p:
        yield "rounds:min-p"


def topology(tree: CandidateTree) -> str:
    """The first of the named shapes that a tree is: see `_TREES` for the order."""
    nodes = range(len(tree))
    inner = [node for node in nodes if tree.children(node)]
    counts = [len(tree.children(node)) for node in inner]
    forks = [node for node in inner if len(tree.children(node)) > 1]
    inner_children = [sum(bool(tree.children(c)) for c in tree.children(n)) for n in inner]
    leaf_depths = [tree.depth[leaf] for leaf in tree.leaves]
    spread = max(leaf_depths) - min(leaf_depths)
    if not inner:
        return "root-only"
    if not forks:
        return "chain"
    if inner == [0]:
        return "star"
    if max(inner_children) == 1 and set(counts[:-1]) == {2} and counts[-1] < 3:
        return "comb"
    if len(forks) == 1 and forks[0] and max(inner_children) == 1 and forks[0] == inner[-1]:
        return "fan"
    if spread <= 1 and sum(count != max(counts) for count in counts) <= 1:
        return "balanced"
    if max(inner_children) == 1:
        return "caterpillar"
    return "unequal-depths" if spread >= 8 else "branching"


def _request(request: Request) -> Iterator[str]:
    tree = request.tree
    yield f"tree:{topology(tree)}"
    yield f"rows:{len(tree)}"
    yield f"order:{_order(request)}"
    if request.pad_rows:
        yield "batch:padded"
    holders: dict[int, set[int]] = {}
    for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
        holders.setdefault(token, set()).add(parent)
    if any(len(parents) > 1 for parents in holders.values()):
        yield "tokens:equal-cousins"


def _order(request: Request) -> str:
    parents = request.parent_rows
    if any(parent > row for row, parent in enumerate(parents)):
        return "child-first"
    depths = [request.tree.depth[node] for node in request.node_of_row]
    if depths == sorted(depths):
        return "breadth-first"
    # In depth-first order a row hangs on the row before it or on one of that row's ancestors.
    for row in range(1, len(parents)):
        above = row - 1
        while above > parents[row]:
            above = parents[above]
        if above != parents[row]:
            return "parent-first"
    return "depth-first"


def _lengths(case: VerifyCase, request: Request) -> Iterator[str]:
    prefix, page, window = request.prefix_len, case.layout.page_size, case.shape.window
    if prefix < 2:
        yield ("prefix:zero", "prefix:one")[prefix]
    if page > 1 and prefix:
        for offset, name in ((-1, "page-1"), (0, "page"), (1, "page+1")):
            if (prefix - offset) % page == 0 and prefix - offset >= page:
                yield f"prefix:{name}"
        if prefix % page:
            yield "page:straddle"
    if page > 1 and prefix // page != (prefix + len(request.tree) - 1) // page:
        yield "page:tree-spans"
    if window is not None and abs(prefix - window) <= 1:
        yield f"prefix:window{prefix - window:+d}".removesuffix("+0")
    columns = prefix + len(request.tree)
    if columns in CONTEXT_LIMITS or columns + 1 in CONTEXT_LIMITS:
        yield "prefix:context-limit"
    if prefix >= LONG:
        yield "prefix:long"


def _windows(case: VerifyCase, b: int) -> Iterator[str]:
    window, request = case.shape.window, case.requests[b]
    if window is None:
        yield "window:none"
        return
    deepest = max(request.tree.depth)
    reach = request.prefix_len + deepest + 1
    if window == 1:
        yield "window:width-1"
    if window <= deepest:
        yield "window:cuts-tree"
    elif window < reach:
        yield "window:cuts-prefix"
    else:
        yield "window:cuts-nothing"
    if case.evicted_columns(b):
        yield "layout:evicted"


def _batch(case: VerifyCase) -> Iterator[str]:
    if len({request.num_rows for request in case.requests}) > 1:
        yield "batch:ragged"
    if case.layout.shared_prefix and len(case.requests) > 1:
        yield "layout:aliased"
    # One request alone takes its pages in turn as if there were no turns.
    if case.layout.order != "interleaved" or len(case.requests) > 1:
        yield f"layout:{case.layout.order}"


def _layout(case: VerifyCase) -> Iterator[str]:
    layout = case.layout
    yield f"page:{layout.page_size}"
    yield f"caches:{layout.storage}"
    if layout.pad_slot < 0:
        yield "layout:no-pad-slot"
    if layout.page_table_pad > 0:
        yield "table-pad:slot"
    else:
        yield "table-pad:none" if layout.page_table_pad else "table-pad:zero"
    yield _MASKS[case.mask.mode]
    if case.mask.slack:
        yield "mask:slack"
    if case.mask.mode is MaskMode.FULL_MASK and not case.mask.fill_prefix:
        yield "mask:unfilled-prefix"


def _shape(case: VerifyCase) -> Iterator[str]:
    shape = case.shape
    if shape.group_size == 1:
        yield "heads:multi-head"
    else:
        yield "heads:multi-query" if shape.num_kv_heads == 1 else "heads:grouped"
    yield "head-dim:64-up" if shape.head_dim >= 64 else "head-dim:below-64"
    if shape.v_head_dim != shape.head_dim:
        yield "head-dim:values-differ"
    yield "rotary:off" if shape.rotary is None else "rotary:on"
    yield f"dtype:{shape.dtype}"
    yield f"cache:{shape.kv_dtype or 'unquantised'}"
    if shape.score_scale != shape.head_dim**-0.5:
        yield "scores:custom-scale"
    if shape.softcap is not None:
        yield "scores:softcap"
    if shape.alibi:
        yield "scores:alibi"
    if shape.sinks:
        yield "scores:sinks"
    if case.score_spread > 1:
        yield "scores:spread"
