"""Cases on which a faulty backend is right, as its report says: the fault needs more than this."""

from treeproof.contract.layout import MaskLayout, MaskMode
from treeproof.faults.smallest import CHAIN, FORK, case, request

_FULL = case(request((-1, 0, 0, 1, 2), prefix=3), request(FORK, prefix=2), page_size=2)
_WHOLE_PAGES = case(request(FORK, prefix=2), page_size=2)

_CONTIGUOUS = case(request(FORK, prefix=2), heads=(2, 1), page_size=2)

SILENT = {
    "strides-ignored.reads": _CONTIGUOUS,
    "strides-ignored.writes": _CONTIGUOUS,
    "strides-ignored.commit": _CONTIGUOUS,
    "other-layer-written": _CONTIGUOUS,
    # A chain's rows are its depths; where nothing is cut a window counts for nothing.
    "window-by-row": case(request(CHAIN, prefix=3), window=2),
    "window-by-row.twice": _FULL,
    "window-off-by-one.up": _FULL,
    "window-off-by-one.down": _FULL,
    "window-dropped": _FULL,
    "window-dropped.inside-range": case(request(prefix=3), window=2),
    "window-by-local-row": _FULL,
    "gather-from-start": case(request(FORK, prefix=1), window=4),
    "gather-from-start.pages": case(request(FORK, prefix=1), window=4),
    "window-mask-columns": case(request(FORK, prefix=2), window=4),
    "window-mask-stride": case(request(FORK, prefix=2), window=4),
    "window-by-slot": case(request(CHAIN, prefix=2), window=2),
    "evicted-page-read.stale": case(request(prefix=2), request(), window=2),
    "evicted-page-read.cleared": case(request(prefix=2), window=2),
    # Other dtypes, chains, trees of one tile, no grandchildren, no prefix.
    "mask-ignored.bfloat16": case(request(FORK, prefix=1)),
    "causal-kernel": case(request(CHAIN, prefix=1)),
    "tile-skipped": case(request((-1, 0, 1, 2), prefix=1)),
    "root-hidden.from-grandchildren": case(request(FORK, prefix=1)),
    "diagonal-top-left": case(request(CHAIN)),
    # One request, one row a request, a prefix in order, whole pages, pages of one key.
    "prefix-last-key-missing.later-requests": case(request(prefix=2)),
    "prefix-of-neighbour.before": case(request(prefix=2)),
    "row-as-request": case(request(prefix=1), request(prefix=1)),
    "prefix-contiguous": case(request(prefix=2)),
    "list-cut-short.missing": case(request(prefix=4), page_size=2),
    "list-cut-short.stale": case(request(prefix=4), page_size=2),
    "partial-page-dropped.every-row": _WHOLE_PAGES,
    "partial-page-dropped.branches": case(request(CHAIN, prefix=1), page_size=2),
    "last-page-read-whole": _WHOLE_PAGES,
    "page-units.number-as-slot": case(request(prefix=1)),
    "page-units.multiplied-twice": case(request(prefix=1)),
    "table-narrow.copy-fails": case(request((-1, 0), prefix=6)),
    "table-narrow.clamped": case(request((-1, 0), prefix=6)),
    # A prefix, no groups, few rows, and layers without what is dropped.
    "empty-part-counted": case(request(FORK, prefix=1)),
    "kv-head-of-another.interleaved": case(request(FORK), heads=(2, 1)),
    "rows-change-numbers": case(request(CHAIN)),
    "softcap-missing.everywhere": case(request(FORK, prefix=1)),
    "sinks-missing.later-rows": case(request(), sinks=True),
    "alibi-by-row": case(request(CHAIN, prefix=1), alibi=True),
    "alibi-of-parts": case(request(prefix=1), alibi=True),
    "kv-scale-missing.keys": case(request(FORK)),
    "kv-scale-of-first-head": case(request(FORK, prefix=1), kv_dtype="int8"),
    "scale-of-head-dim": case(request(FORK, prefix=1)),
    # One request, no other request of as many nodes, rows of one block, a vocabulary in order.
    "tokens-of-neighbour.drafts": case(request(FORK)),
    "tokens-of-neighbour.bonus": case(request(FORK)),
    "tree-of-neighbour": case(request(FORK), request((-1, 0), tokens=(5, 6))),
    "block-period.two": case(request((-1, 0))),
    "block-period.four": case(request((-1, 0, 0, 1))),
    "draft-vocabulary.unmapped": case(request(FORK, tokens=(7, 0, 1))),
    "draft-vocabulary.offsets": case(request((-1, 0), tokens=(7, 0))),
    "draft-index.request-number": case(request((-1, 0)), request(FORK)),
    "draft-index.widest": case(request((-1, 0)), request((-1, 0), tokens=(0, 2))),
    "needs-a-second-layer": case(request(CHAIN)),
    "needs-all-branches": case(request((-1, 0, 0, 1, 2))),
    "malformed-selection.scan-one-too-far": case(request(FORK), request(CHAIN)),
    # Chains, full layers, roots alone, no prefix, equal prefixes and row counts, no padding.
    "position-is-row": case(request(CHAIN, prefix=3)),
    "position-by-buffer-order.last-k": case(request((-1, 0, 0, 1, 2), prefix=3)),
    "position-by-buffer-order.full-layers": case(request((-1, 0, 0, 1, 2), prefix=3)),
    "position-base.depth-alone": case(request(FORK)),
    "position-base.neighbour": case(request(FORK, prefix=2), request(CHAIN, prefix=2)),
    "position-stride.widest": case(request(FORK, prefix=1), request(CHAIN)),
    "position-stride.drafts-only": case(request(FORK, prefix=1)),
    "position-not-expanded.repeated": case(request(prefix=3), request()),
    "position-not-expanded.one-a-request": case(request(prefix=3), request()),
    "padding-position.of-an-older-batch": case(request(FORK, prefix=1)),
    "slot-from-position.siblings-collide": case(request(CHAIN, prefix=3)),
    "slot-from-position.lagging": case(request(FORK)),
    # The first request, chains, forks without grandchildren, trees that are equal.
    "ancestors-unwritten.later-requests": case(request(FORK), request()),
    "ancestors-unwritten.every-row": case(request(FORK)),
    "ancestor-hidden.root-from-depth-two": case(request(FORK)),
    "ancestor-hidden.parent": case(request(FORK)),
    "ancestor-hidden.grandparent": case(request(CHAIN)),
    "sibling-visible.elder": case(request(CHAIN)),
    "sibling-visible.younger": case(request(CHAIN)),
    "sibling-visible.of-an-ancestor": case(request(FORK)),
    "tree-mask-left-out.causal": case(request(CHAIN, prefix=2)),
    "tree-mask-left-out.none": case(request(prefix=2)),
    "mask-transposed": case(request(prefix=2)),
    "mask-of-neighbour": case(request(FORK, prefix=1), request(FORK)),
    # Other layouts of the mask, one request, equal sizes, no padding, few rows.
    "mask-offsets.elements": case(request(FORK), request(CHAIN)),
    "mask-offsets.bytes": case(
        request(FORK), request(CHAIN), mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING)
    ),
    "mask-offsets.of-live-rows": case(request(FORK), request(CHAIN)),
    "mask-buffer.taller": case(request(FORK, prefix=1)),
    "mask-buffer.wider": case(request(FORK), mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING)),
    "mask-buffer.padded-square": case(request(FORK, prefix=1), request(CHAIN, prefix=1)),
    "mask-buffer.keys-by-rows": case(request()),
    "mask-buffer.live-rows-only": case(request(FORK), request(CHAIN)),
    "mask-too-short.tree-cells-alone": case(request(FORK), request(CHAIN)),
    "mask-too-short.at-the-context": case(
        request(FORK, prefix=2), mask=MaskLayout(mode=MaskMode.QLEN_ONLY)
    ),
    "mask-word-overflow.8-bits": case(request((-1, *[0] * 7))),
    "mask-word-overflow.16-bits": case(request((-1, *[0] * 15))),
    "mask-word-overflow.32-bits": case(request((-1, *[0] * 31))),
    "mask-word-overflow.wrapped": case(request((-1, *[0] * 31))),
}
