"""Faults of sliding windows: where a window is cut, and by what it is counted."""

from __future__ import annotations

from dataclasses import replace

from treeproof.contract.inputs import VerifyInput
from treeproof.faults.attending import LISTS, each, edit, fault_of_attend, launch, lists
from treeproof.faults.fault import Plant
from treeproof.faults.launched import Row, with_window
from treeproof.faults.smallest import FORK, case, request

_KERNEL_CUTS = ("direct-mask", "page-table", "topology")
"""Backends whose attend cuts by the width of the window."""

_TABLE_CUTS = ("swa-window", "cascade")
"""Backends that launch a table of cuts."""

_PAIR = (-1, 0)


def _from(row: Row, index: int) -> Row:
    """The row's list from this logical index on; a row always reads its own key."""
    cut = min(max(0, index - row.first), len(row.keys) - 1)
    return row if row.window is None else replace(row, cut=cut)


def _counted_in_rows(row: Row) -> Row:
    return _from(row, row.prefix_len + row.row + 1 - (row.window or 0))


def _counted_twice(row: Row) -> Row:
    return _from(row, row.prefix_len + len(row.path) + row.row - (row.window or 0))


_BY_ROW = {
    "direct-mask": edit(
        (
            "visible = visible & (_distance(tree, column) < window)",
            "visible = visible & (row[:, :, None] - every < window)",
        )
    ),
    "topology": edit(
        ("prefix + len(path) - reach", "prefix + path[-1] + 1 - reach"),
        (
            "(index[row] for row in path[-reach:])",
            "(index[row] for row in path if row > path[-1] - reach)",
        ),
    ),
    **each((*LISTS, "cascade"), lists(_counted_in_rows)),
}


def _resized(by: int) -> dict[str, Plant]:
    def width(x: VerifyInput) -> VerifyInput:
        return x if x.shape.window is None else with_window(x, max(1, x.shape.window + by))

    return {
        **each(_KERNEL_CUTS, launch(width)),
        **each(_TABLE_CUTS, lists(lambda row: _from(row, row.first + row.cut - by))),
    }


_DROPPED = {
    **each(_KERNEL_CUTS, launch(lambda x: with_window(x, None))),
    **each(_TABLE_CUTS, lists(lambda row: replace(row, cut=0))),
}


def _of_the_root(row: Row) -> Row:
    return _from(row, row.prefix_len + 1 - (row.window or 0))


_DROPPED_INSIDE = {
    "direct-mask": edit(("visible = visible & (_distance(tree, column) < window)", "pass")),
    "topology": edit(
        ("prefix + len(path) - reach", "prefix + 1 - reach"),
        ("(index[row] for row in path[-reach:])", "(index[row] for row in path)"),
    ),
    **each(LISTS, lists(_of_the_root)),
}


def _from_local_index(row: Row) -> Row:
    if row.window is None:
        return row
    keys = row.keys[max(0, row.row + 1 - row.window) : row.row + 1]
    return replace(row, keys=keys or row.keys[-1:], cut=0)


_BY_LOCAL_INDEX = {
    "direct-mask": edit(
        ("start = 0 if window is None else max(0, prefix - window + 1)", "start = 0"),
        (
            "visible = visible & (_distance(tree, column) < window)",
            "index = prefix + every\n"
            "                offset = row[:, :, None] - index[:, None]\n"
            "                visible = (index >= 0)[:, None] & (offset >= 0) & (offset < window)",
        ),
    ),
    **each(LISTS, lists(_from_local_index)),
}


def _gathered_from_start(row: Row) -> Row:
    before = len(row.front)
    front = row.front[: max(0, before - row.cut)]
    return replace(row, keys=front + row.path[max(0, row.cut - before) :], cut=0)


_FROM_START = {
    "direct-mask": edit(
        ("torch.maximum(table_column, start)]", "torch.maximum(table_column, start) - start]")
    ),
    "topology": edit(("line + start if start", "line if start")),
    **each(LISTS, lists(_gathered_from_start)),
}

_PAGES_FROM_START = {
    "cascade": edit(
        (
            "column = shared_from[:, None] + page * torch",
            "column = torch.zeros_like(shared_from)[:, None] + page * torch",
        )
    )
}

_COLUMNS_EARLY = {
    "direct-mask": edit(
        (
            "visible = torch.cat([inside, tree], dim=2)",
            "early = cell - start if x.mask_mode is MaskMode.FULL_MASK else cell\n"
            "            _, shifted = _trees(x, every[above:], count, early, stride)\n"
            "            visible = torch.cat([inside, shifted], dim=2)",
        )
    )
}

_CLIPPED_STRIDE = {
    "direct-mask": edit(
        (
            "row, tree = _trees(x, every[above:], count, cell, stride)\n",
            "if x.mask_mode is MaskMode.FULL_MASK:\n"
            "                cell, stride = cell - start, stride - start\n"
            "            row, tree = _trees(x, every[above:], count, cell, stride)\n",
        )
    )
}


def _by_slot(row: Row) -> Row:
    if row.window is None:
        return row
    lowest = row.keys[-1] - row.window
    return replace(row, keys=tuple(slot for slot in row.keys if slot > lowest), cut=0)


_BY_SLOT = {
    "direct-mask": edit(
        ("start = 0 if window is None else max(0, prefix - window + 1)", "start = 0"),
        ("visible = visible & (_distance(tree, column) < window)", "pass"),
        (
            "slots = torch.cat([shared, homes], dim=1)",
            "slots = torch.cat([shared, homes], dim=1)\n"
            "            if window is not None:\n"
            "                visible = visible & (slots[:, None] > homes[:, :, None] - window)",
        ),
    ),
    **each((*LISTS, "cascade"), lists(_by_slot)),
}


_NO_METADATA = each(
    _TABLE_CUTS, launch(lambda x: x if x.shape.window is None else replace(x, kv_start=None))
)

FAULTS = (
    fault_of_attend(
        "window-by-row",
        "the window is counted in rows, which run ahead of depths among siblings",
        _BY_ROW,
        cause="window-by-row",
        smallest=case(request(FORK), window=2),
        sources=("B031", "sgl-project/sglang#39287"),
    ),
    fault_of_attend(
        "window-by-row.twice",
        "the row is added to the logical index that a window ends at",
        each((*LISTS, "cascade"), lists(_counted_twice)),
        cause="unknown",
        smallest=case(request(_PAIR), window=2),
        sources=("NVIDIA/TensorRT-LLM#15739",),
    ),
    fault_of_attend(
        "window-off-by-one.up",
        "the window takes one key more than its width",
        _resized(1),
        cause="window-off-by-one",
        smallest=case(request(_PAIR), window=1),
        sources=("microsoft/onnxruntime#25927", "huggingface/transformers#39408"),
    ),
    fault_of_attend(
        "window-off-by-one.down",
        "the window takes one key less than its width",
        _resized(-1),
        cause="window-off-by-one",
        smallest=case(request(_PAIR), window=2),
        sources=("vllm-project/vllm#3385",),
    ),
    fault_of_attend(
        "window-dropped",
        "verify runs without the window",
        _DROPPED,
        cause="window-dropped",
        smallest=case(request(_PAIR), window=1),
        sources=("B033",),
    ),
    fault_of_attend(
        "window-dropped.inside-range",
        "the range of keys is cut for the root, and no row is cut further",
        _DROPPED_INSIDE,
        cause="window-dropped",
        smallest=case(request(_PAIR), window=1),
        sources=("B033",),
    ),
    fault_of_attend(
        "window-by-local-row",
        "window and diagonal are counted from the first verify row as if it were at index 0",
        _BY_LOCAL_INDEX,
        cause="diagonal-top-left",
        smallest=case(request(prefix=1), window=2),
        sources=("B033",),
    ),
    fault_of_attend(
        "gather-from-start",
        "the prefix is clipped to the window in length, and gathered from its first key",
        _FROM_START,
        cause="gather-from-start",
        smallest=case(request(prefix=2), window=2),
        sources=("B029", "sgl-project/sglang#39287"),
    ),
    fault_of_attend(
        "gather-from-start.pages",
        "the table of shared pages begins at the first page, not where the window does",
        _PAGES_FROM_START,
        cause="gather-from-start",
        smallest=case(request(prefix=2), window=2),
        sources=("B029",),
        evidence="declared",
        stage="build",
    ),
    fault_of_attend(
        "window-mask-columns",
        "mask columns are not offset by the prefix keys that the window clips",
        _COLUMNS_EARLY,
        cause="mask-column-shift",
        smallest=case(request(_PAIR, prefix=1), window=1),
        sources=("B030", "sgl-project/sglang#9279"),
    ),
    fault_of_attend(
        "window-mask-stride",
        "rows of a full mask are as wide as the clipped prefix and the tree",
        _CLIPPED_STRIDE,
        cause="mask-rows-of-buffer-width",
        smallest=case(request(_PAIR, prefix=2), window=2),
        sources=("sgl-project/sglang#39287",),
    ),
    fault_of_attend(
        "window-by-slot",
        "the window is cut by cache slot",
        _BY_SLOT,
        cause="window-by-slot",
        smallest=case(request(_PAIR), window=1, layout={"order": "reversed"}),
        sources=("flashinfer-ai/flashinfer#3585",),
    ),
    fault_of_attend(
        "window-metadata-missing",
        "the verify branch never fills the table of window starts",
        _NO_METADATA,
        cause="refuses-valid",
        smallest=case(request(), window=1),
        sources=("B032",),
        identity="contract",
    ),
)
