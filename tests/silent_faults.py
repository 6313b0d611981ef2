"""Cases on which a faulty backend is right, as its report says: the fault needs more than this."""

from treeproof.faults.smallest import CHAIN, FORK, case, request

_FULL = case(request((-1, 0, 0, 1, 2), prefix=3), request(FORK, prefix=2), page_size=2)
_WHOLE_PAGES = case(request(FORK, prefix=2), page_size=2)

SILENT = {
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
}
