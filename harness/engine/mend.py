"""A built input with right fields in place of its own: what the stages behind a build are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import Group
from treeproof.properties.scene import Scene

_PLAIN = (
    "draft_token", "positions", "seq_lens", "qo_indptr", "out_cache_loc", "request_slots",
    "req_to_token", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling",
    "retrieve_parent_token",
)  # fmt: skip


_FIELDS_OF: Mapping[Group, frozenset[str]] = {
    "tokens": frozenset({"draft_token"}),
    "positions": frozenset({"positions"}),
    "slots": frozenset({"out_cache_loc"}),
    "lengths": frozenset({"seq_lens"}),
    "links": frozenset({
        "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token",
    }),
}  # fmt: skip
"""Fields of a build by group of evidence; all others are tables."""


def of_groups(produced: Mapping[str, Any], groups: Collection[Group]) -> dict[str, Any]:
    """The fields of a build that show in these groups of evidence."""
    other = frozenset().union(*_FIELDS_OF.values())
    chosen = frozenset().union(*(_FIELDS_OF.get(group, frozenset()) for group in groups))
    return {
        name: field
        for name, field in produced.items()
        if name in chosen or ("tables" in groups and name not in other)
    }


def mended(
    scene: Scene, x: VerifyInput, right: VerifyInput, produced: Mapping[str, Any]
) -> VerifyInput:
    """`x` with each field of `produced` that has one right content: from `right`, or from the ledger.

    Masks and lists keep their form. A form that is not known here is left as it was built.
    """
    changed: dict[str, Any] = {}
    for name in _PLAIN:
        true = getattr(right, name)
        if name in produced and true is not None and true.shape == produced[name].shape:
            changed[name] = true.to(produced[name].dtype)
    mask = produced.get("custom_mask")
    if mask is not None and right.custom_mask is not None and mask.dtype == right.custom_mask.dtype:
        changed["custom_mask"], changed["mask_indptr"] = right.custom_mask, right.mask_indptr
    changed |= _lists(scene, produced)
    return replace(x, **changed)


def _lists(scene: Scene, produced: Mapping[str, Any]) -> dict[str, Any]:
    """Right lists in the form that was built: one a row of slots, a page table with a line a row, or
    pages of each request that its rows share, and a list a row of what is left."""
    total = scene.num_rows
    by_pages = "page_table" in produced and "cache_seqlens" in produced
    by_lists = "kv_indices" in produced and "kv_indptr" in produced
    if by_lists and not by_pages and produced["kv_indptr"].shape[0] == total + 1:
        return _slot_lists(scene, produced)
    if by_pages and not by_lists and produced["page_table"].shape[0] == total:
        return _lines(scene, produced)
    heights = (
        by_lists and by_pages and (produced["kv_indptr"].shape[0], len(produced["page_table"]))
    )
    if heights == (total + 1, len(scene.case.requests)):
        return _shared_and_own(scene, produced)
    return {}


def _columns(scene: Scene) -> list[list[int]]:
    """Slots of each row of the launch in logical order, the window not yet cut; of padding, the root.

    Cells of evicted pages hold what the token table holds there.
    """
    table, found = scene.ledger.req_to_token, []
    for b, row in scene.rows:
        request = scene.case.requests[b]
        path = [0]
        if row < request.num_nodes:
            node = request.node_of_row[row]
            path = [request.row_of_node[n] for n in request.tree.path(node)]
        slots = table[scene.ledger.request_slots[b]]
        p = request.prefix_len
        found.append([*slots[:p], *(slots[p + r] for r in path)])
    return found


def _slot_lists(scene: Scene, produced: Mapping[str, Any]) -> dict[str, Any]:
    lists = _columns(scene)
    ends = [0]
    for one in lists:
        ends.append(ends[-1] + len(one))
    made = {
        "kv_indptr": _like(produced["kv_indptr"], ends),
        "kv_indices": _like(produced["kv_indices"], [slot for one in lists for slot in one]),
    }
    if "kv_start" in produced:
        made["kv_start"] = _like(produced["kv_start"], _starts(scene, lists))
    return made


def _starts(scene: Scene, lists: list[list[int]]) -> list[int]:
    window = scene.case.shape.window
    return [0 if window is None else max(0, len(one) - window) for one in lists]


def _lines(scene: Scene, produced: Mapping[str, Any]) -> dict[str, Any]:
    lists = _columns(scene)
    width = max(map(len, lists))
    padded = [[*one, *[one[-1]] * (width - len(one))] for one in lists]
    return {
        "page_table": _like(produced["page_table"], padded),
        "cache_seqlens": _like(produced["cache_seqlens"], [len(one) for one in lists]),
    }


def _shared_and_own(scene: Scene, produced: Mapping[str, Any]) -> dict[str, Any]:
    """Whole pages that every row of a request sees, and the slots before and behind them a row.

    Where a window makes rows begin at different keys their lists are cut by `kv_start`; a form that
    has no such field is not known.
    """
    case, page = scene.case, scene.case.layout.page_size
    columns, lists, starts, pages, lengths = _columns(scene), [], [], [], []
    if case.shape.window is not None and "kv_start" not in produced:
        return {}
    for b, request in enumerate(case.requests):
        prefix, first = request.prefix_len, case.qo_indptr[b]
        own = columns[first : first + request.num_rows]
        begin = _starts(scene, own[: request.num_nodes])
        shared = min(prefix, -(-max(begin) // page) * page)
        low = min(begin)
        lists += [[*one[low:shared], *one[prefix:]] for one in own[: request.num_nodes]]
        lists += [one[prefix:] for one in own[request.num_nodes :]]
        starts += [*(start - low for start in begin), *[0] * request.pad_rows]
        pages.append([slot // page for slot in own[0][shared:prefix:page]])
        lengths.append(prefix - shared)
    width = max(map(len, pages))
    ends = list(accumulate(map(len, lists), initial=0))
    made = {
        "page_table": _like(
            produced["page_table"], [[*line, *[0] * (width - len(line))] for line in pages]
        ),
        "cache_seqlens": _like(produced["cache_seqlens"], lengths),
        "kv_indptr": _like(produced["kv_indptr"], ends),
        "kv_indices": _like(produced["kv_indices"], [slot for one in lists for slot in one]),
    }
    if "kv_start" in produced:
        made["kv_start"] = _like(produced["kv_start"], starts)
    return made


def _like(old: Tensor, values: Any) -> Tensor:
    return torch.tensor(values, dtype=old.dtype, device=old.device)
