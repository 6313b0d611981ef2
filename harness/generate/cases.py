"""Hypothesis strategies for verify cases: run-time values drawn around a shape group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from treeproof.contract.case import (
    AttentionShape,
    Full,
    KVLayout,
    MaskLayout,
    MaskMode,
    Order,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.tree import CandidateTree
from treeproof.generate.lengths import PREFIX_CLASSES, WINDOW_CLASSES, Lengths, lengths
from treeproof.generate.profiles import PROFILES, Profile
from treeproof.generate.shapes import ShapeGroup
from treeproof.generate.trees import TOPOLOGY, row_orders, trees

_FAR = ("context-limit", "long")

# Made once: building and validating a strategy takes longer than drawing from it.
_YES = st.booleans()
_PREFIX_CLASS = st.sampled_from(PREFIX_CLASSES)
_WINDOW_CLASS = st.sampled_from(WINDOW_CLASSES)
_REQUESTS = st.sampled_from((1, 1, 2, 2, 3, 4))
_PAD_ROWS = st.sampled_from((0, 0, 0, 1, 2, 7))
_PAD_SLOT = st.sampled_from((0, -1))
_SPARE_PAGES = st.integers(0, 5)
_PAGE_ORDER: st.SearchStrategy[Order] = st.sampled_from(
    ("contiguous", "reversed", "interleaved", "shuffled")
)
_SLACK = st.sampled_from((0, 1, 37, 1100))
_SEED = st.integers(0, 2**63 - 1)
_SPREAD = st.sampled_from((1.0, 8.0))
_SOFTCAP = st.sampled_from((50.0, 30.0, 15.0))
_SCALE = st.sampled_from((0.8, 0.5, 1.7))
"""Of a group with a scale of its own: times the usual one."""


@dataclass(frozen=True)
class Focus:
    """What is not left to chance in a case's first request; None is drawn."""

    topology: str | None = None
    rows: int | None = None
    prefix: str | None = None
    window: str | None = None
    """Used by windowed groups only."""
    plain: bool | None = None
    """Without softcap, sinks, ALiBi and quantised cache: what every backend is sent."""


@st.composite
def cases(
    draw: DrawFn,
    group: ShapeGroup | None = None,
    profile: str = "quick",
    focus: Focus | None = None,
) -> VerifyCase:
    """Verify cases of a shape group, or of any group of the profile.

    Everything shrinks to one request, a chain, an empty prefix and a contiguous cache.
    """
    sizes = PROFILES[profile]
    group = group or draw(st.sampled_from(sizes.groups))
    focus = focus or Focus()
    prefix = focus.prefix or draw(_PREFIX_CLASS)
    window = None
    if group.windowed:
        window = focus.window or draw(_WINDOW_CLASS)
    batch = _batch(draw, sizes, group, focus, most=2 if prefix in _FAR else 4)
    drawn = lengths(draw, sizes, group.page_size, batch, prefix, window)
    layout, drawn = _layout(draw, group, batch, drawn)
    requests = tuple(
        _request(draw, tree, length, group)
        for tree, length in zip(batch, drawn.prefixes, strict=True)
    )
    return VerifyCase(
        requests=requests,
        shape=_shape(draw, group, drawn.window, focus),
        layout=layout,
        mask=_mask(draw, group.mask_mode),
        seed=draw(_SEED),
        score_spread=draw(_SPREAD),
    )


def _batch(
    draw: DrawFn, profile: Profile, group: ShapeGroup, focus: Focus, most: int
) -> tuple[CandidateTree, ...]:
    """The trees of 1 to `most` requests, within the rows that the profile allows together."""
    limit = min(profile.rows, group.most_rows or profile.rows)
    topology = focus.topology or draw(TOPOLOGY)
    found = [draw(trees(focus.rows or 1, focus.rows or limit, topology))]
    left = profile.rows_together - len(found[0])
    count = min(draw(_REQUESTS), most, 1 + left // 4)
    for waiting in range(count - 1, 0, -1):
        # Fair shares of what is left, so that the last request is not always the small one.
        found.append(draw(trees(1, max(1, min(limit, left // waiting)))))
        left -= len(found[-1])
    return tuple(found)


def _request(draw: DrawFn, tree: CandidateTree, prefix: int, group: ShapeGroup) -> Request:
    room = 16 if group.most_rows is None else group.most_rows - len(tree)
    return Request(
        tree=tree,
        row_of_node=draw(row_orders(tree)),
        prefix_len=prefix,
        pad_rows=min(room, draw(_PAD_ROWS)),
    )


def _layout(
    draw: DrawFn, group: ShapeGroup, batch: tuple[CandidateTree, ...], drawn: Lengths
) -> tuple[KVLayout, Lengths]:
    """A cache that holds the batch, and the lengths: aliasing may stretch the shorter prefixes."""
    page = group.page_size
    shared, prefixes = 0, drawn.prefixes
    if len(batch) > 1 and draw(_YES) and prefixes[0] >= page:
        shared = page * draw(st.integers(1, min(8, prefixes[0] // page)))
        prefixes = tuple(max(shared, length) for length in prefixes)
    pad_slot = draw(_PAD_SLOT)
    columns = [p + len(t) for p, t in zip(prefixes, batch, strict=True)]
    pages = pages_of(columns, page, shared, pad_slot) + draw(_SPARE_PAGES)
    layout = KVLayout(
        page_size=page,
        num_slots=pages * page,
        order=draw(_PAGE_ORDER),
        pad_slot=pad_slot,
        page_table_pad=draw(st.sampled_from((0, -1, pages * page - 1))),
        shared_prefix=shared,
        evicted=group.windowed and draw(_YES),
    )
    return layout, Lengths(prefixes, drawn.window)


def pages_of(columns: Sequence[int], page_size: int, shared_prefix: int, pad_slot: int) -> int:
    """Pages that requests of these lengths need, with the pad page where there is one."""
    aliased = shared_prefix // page_size * (len(columns) - 1)
    return sum(-(-count // page_size) for count in columns) - aliased + (pad_slot == 0)


def _mask(draw: DrawFn, mode: MaskMode) -> MaskLayout:
    return MaskLayout(
        mode=mode,
        slack=draw(_SLACK),
        fill_prefix=mode is not MaskMode.FULL_MASK or not draw(_YES),
    )


def _shape(draw: DrawFn, group: ShapeGroup, window: int | None, focus: Focus) -> AttentionShape:
    shape = shape_of(group, window)
    if group.custom_scale:
        shape = replace(shape, scale=round(draw(_SCALE) * shape.score_scale, 4))
    # False is what shrinks: the simplest case is a plain one.
    plain = not draw(_YES) if focus.plain is None else focus.plain
    if plain:
        return shape
    return replace(
        shape,
        softcap=draw(_SOFTCAP) if group.softcap else None,
        sinks=group.sinks,
        alibi=group.alibi,
        kv_dtype=group.kv_dtype,
    )


def shape_of(group: ShapeGroup, window: int | None) -> AttentionShape:
    """The plain layer of a group, with a window of this width; None: no window."""
    return AttentionShape(
        num_q_heads=group.num_q_heads,
        num_kv_heads=group.num_kv_heads,
        head_dim=group.head_dim,
        v_head_dim=group.v_head_dim,
        dtype=group.dtype,
        rotary=group.rotary,
        visibility=Full() if window is None else Window(width=window),
    )
