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


@st.composite
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
        width = draw(_width_before(window_class, depth))
        first = max(0, width + {"-1": -1, "+1": 1}.get(prefix_class[6:], 0))
    else:
        first = draw(_prefix(prefix_class, profile, page_size, len(trees[0])))
        if window_class is not None:
            width = draw(_width_after(window_class, depth, first))
    others = [draw(_prefix(draw(_NEAR), profile, page_size, len(tree))) for tree in trees[1:]]
    return Lengths((first, *others), width)


def _prefix(kind: str, profile: Profile, page: int, nodes: int) -> st.SearchStrategy[int]:
    if kind == "zero":
        return st.just(0)
    if kind == "one":
        return st.just(1)
    if kind.startswith("page"):
        offset = {"-1": -1, "+1": 1}.get(kind[4:], 0)
        return st.integers(1, max(1, min(4, profile.prefix // page))).map(
            lambda pages: pages * page + offset
        )
    if kind == "context-limit":
        limits = [limit - nodes for limit in profile.context_limits]
        return st.sampled_from([max(0, most - spare) for most in limits for spare in (0, 1)])
    if kind == "long":
        return st.integers(*profile.long_prefix)
    return st.integers(2, profile.prefix)


def _width_before(kind: str, depth: int) -> st.SearchStrategy[int]:
    """Widths where the prefix is chosen afterwards, next to the width."""
    if kind == "one":
        return st.just(1)
    if kind == "cuts-tree":
        return st.integers(min(2, depth + 1), max(2, depth))
    return st.integers(depth + 2, depth + 98)


def _width_after(kind: str, depth: int, prefix: int) -> st.SearchStrategy[int]:
    """Widths for a given prefix: the deepest row would see prefix + depth + 1 keys."""
    reach = prefix + depth + 1
    if kind == "one":
        return st.just(1)
    if kind == "cuts-tree":
        return st.integers(min(2, depth + 1), max(2, depth))
    if kind == "cuts-prefix":
        return st.integers(depth + 2, max(depth + 2, reach - 1))
    if kind == "edge":
        return st.integers(max(1, reach - 1), reach + 1)
    return st.integers(reach + 1, reach + 65)
