"""Prefix lengths and window widths, drawn at the edges where kernels go wrong."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from treeproof.contract.tree import CandidateTree
from treeproof.generate.profiles import Profile

PREFIX_CLASSES = (
    "zero",
    "one",
    "random",
    "page-1",
    "page",
    "page+1",
    "window-1",
    "window",
    "window+1",
    "context-limit",
    "long",
)
"""Around a multiple of the page size; around the window; P + N at a context limit; far away."""

WINDOW_CLASSES = ("wide", "cuts-prefix", "edge", "cuts-tree", "one")
"""Nothing cut; prefix cut for the deepest row; the last key reached or just not; an ancestor cut
off; every row sees itself only."""

_NEAR = st.sampled_from(PREFIX_CLASSES[:6])


@dataclass(frozen=True)
class Lengths:
    prefixes: tuple[int, ...]
    """Keys before each request's tree."""
    window: int | None
    """Width in keys, the query's own included."""


def lengths(
    draw: DrawFn,
    profile: Profile,
    page_size: int,
    trees: tuple[CandidateTree, ...],
    prefix_class: str,
    window_class: str | None,
) -> Lengths:
    """Lengths of a batch; the classes are those of its first request. No window class: no window."""
    depth = max(trees[0].depth)
    width: int | None = None
    if prefix_class.startswith("window") and window_class is not None:
        width = _width_before(draw, window_class, depth)
        first = max(0, width + _offset(prefix_class))
    else:
        first = _prefix(draw, prefix_class, profile, page_size, len(trees[0]))
        if window_class is not None:
            width = _width_after(draw, window_class, depth, first)
    others = [_prefix(draw, draw(_NEAR), profile, page_size, len(tree)) for tree in trees[1:]]
    return Lengths((first, *others), width)


def _offset(kind: str) -> int:
    return -1 if kind.endswith("-1") else 1 if kind.endswith("+1") else 0


def _prefix(draw: DrawFn, kind: str, profile: Profile, page: int, nodes: int) -> int:
    if kind == "zero":
        return 0
    if kind == "one":
        return 1
    if kind.startswith("page"):
        pages = draw(st.integers(1, max(1, min(4, profile.prefix // page))))
        return pages * page + _offset(kind)
    if kind == "context-limit":
        limit = draw(st.sampled_from(profile.context_limits))
        return max(0, limit - nodes - draw(st.integers(0, 1)))
    if kind == "long":
        return draw(st.integers(*profile.long_prefix))
    return draw(st.integers(2, profile.prefix))


def _width_before(draw: DrawFn, kind: str, depth: int) -> int:
    """A width where the prefix is chosen afterwards, next to the width."""
    if kind == "one":
        return 1
    if kind == "cuts-tree":
        return draw(st.integers(min(2, depth + 1), max(2, depth)))
    return draw(st.integers(depth + 2, depth + 98))


def _width_after(draw: DrawFn, kind: str, depth: int, prefix: int) -> int:
    """A width for a given prefix: the deepest row would see prefix + depth + 1 keys."""
    reach = prefix + depth + 1
    if kind == "one":
        return 1
    if kind == "cuts-tree":
        return draw(st.integers(min(2, depth + 1), max(2, depth)))
    if kind == "cuts-prefix":
        return draw(st.integers(depth + 2, max(depth + 2, reach - 1)))
    if kind == "edge":
        return draw(st.integers(max(1, reach - 1), reach + 1))
    return draw(st.integers(reach + 1, reach + 65))
