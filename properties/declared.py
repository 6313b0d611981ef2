"""Declared visibility: the mask, lists, page tables or links that decide what a kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from treeproof.contract.case import MaskMode
from treeproof.properties.scene import Scene
from treeproof.properties.tables import (
    Slots,
    recover_closure,
    recover_lists,
    recover_mask,
    recover_mask_prefix,
    recover_pages,
)
from treeproof.properties.traversal import recover_links
from treeproof.properties.visibility import FOREIGN, Reading, declared_reading


@dataclass(frozen=True)
class Declaration:
    """What one form of table says. `window_free`: the window is cut later, by the kernel."""

    form: str
    readings: tuple[Reading, ...]
    window_free: bool


def declarations(scene: Scene, tables: Mapping[str, Any], mask_mode: MaskMode) -> list[Declaration]:
    """Every form of table found in `tables`, decoded. Raises ValueError where one is malformed."""
    found = []
    if "custom_mask" in tables and "mask_indptr" in tables:
        found.append(_mask(scene, tables, mask_mode))
    if _has_lists(scene, tables):
        found.append(_lists(scene, tables))
    if "retrieve_parent_token" in tables:
        parents = tables["retrieve_parent_token"].tolist()
        found.append(_links(scene, [list(p) for p in parents], "parent pointers"))
    elif "retrieve_next_token" in tables and "retrieve_next_sibling" in tables:
        rows = [r.num_nodes for r in scene.case.requests]
        linked = recover_links(
            tables["retrieve_next_token"].tolist(), tables["retrieve_next_sibling"].tolist(), rows
        )
        found.append(_links(scene, [list(p) for p in linked], "links"))
    return found


def _has_lists(scene: Scene, tables: Mapping[str, Any]) -> bool:
    """Whether there is a list a row, and not only one a request.

    Where every request has one row the heights are equal; beside a mask the lists are the requests'.
    """
    rows = scene.num_rows
    if rows == len(scene.case.requests) and "custom_mask" in tables:
        return False
    if "kv_indices" in tables and "kv_indptr" in tables:
        return bool(tables["kv_indptr"].shape[0] == rows + 1)
    return (
        "page_table" in tables
        and "cache_seqlens" in tables
        and bool(tables["page_table"].shape[0] == rows)
    )


def _mask(scene: Scene, tables: Mapping[str, Any], mode: MaskMode) -> Declaration:
    case = scene.case
    prefixes = [r.prefix_len for r in case.requests]
    rows = [r.num_rows for r in case.requests]
    mask = tables["custom_mask"].cpu().numpy()
    indptr = tables["mask_indptr"].tolist()
    blocks = recover_mask(mask, indptr, mode, prefixes, rows)
    readings = []
    for b, request in enumerate(case.requests):
        n, p = request.num_nodes, request.prefix_len
        cells = blocks[b][:n].astype(np.float64)
        # Columns of padded rows belong to nobody: seeing one is seeing memory that no row holds.
        columns = [p + i if i < n else FOREIGN for i in range(request.num_rows)]
        slots = [*scene.ledger.row_slots(b), *[-1] * request.pad_rows]
        if mode is MaskMode.FULL_MASK and case.mask.fill_prefix:
            prefix = recover_mask_prefix(mask, indptr, prefixes, rows)[b][:n]
            cells = np.concatenate((prefix.astype(np.float64), cells), axis=1)
            columns = [*range(p), *columns]
            slots = [*scene.ledger.columns[b][:p], *slots]
        readings.append(Reading(b, tuple(columns), tuple(slots), cells, cells))
    return Declaration("mask", tuple(readings), window_free=case.shape.window is not None)


def _lists(scene: Scene, tables: Mapping[str, Any]) -> Declaration:
    case, page = scene.case, scene.case.layout.page_size
    total = scene.num_rows
    lists: list[Slots]
    if "kv_indices" in tables and tables["kv_indptr"].shape[0] == total + 1:
        start = tables["kv_start"].tolist() if "kv_start" in tables else None
        lists = recover_lists(tables["kv_indptr"].tolist(), _slots(tables["kv_indices"]), start)
        form = "lists of slots"
        if "page_table" in tables and "cache_seqlens" in tables:
            lengths = tables["cache_seqlens"].tolist()
            paged = recover_pages(_slots(tables["page_table"]), lengths, page)
            lists = [
                np.concatenate((paged[b], own))
                for (b, _), own in zip(scene.rows, lists, strict=True)
            ]
            form = "prefix pages and suffix lists"
    else:
        # A line a row is a list of slots: the paths of a tree do not come in whole pages.
        lists = recover_pages(_slots(tables["page_table"]), tables["cache_seqlens"].tolist(), 1)
        form = "page tables"
    uncut = case.shape.window is not None and "kv_start" not in tables
    readings = []
    for b, request in enumerate(case.requests):
        first = case.qo_indptr[b]
        # Cells of evicted pages are undefined; a list that the window has yet to cut holds them.
        defined = case.evicted_columns(b) if uncut else 0
        own = [row[defined:] for row in lists[first : first + request.num_nodes]]
        readings.append(declared_reading(b, scene.ledger, own))
    return Declaration(form, tuple(readings), window_free=uncut)


def _slots(table: Any) -> Slots:
    found: Slots = table.cpu().numpy().astype(np.int64)
    return found


def _links(scene: Scene, parents: list[list[int | None]], form: str) -> Declaration:
    readings = []
    for b, request in enumerate(scene.case.requests):
        n = request.num_nodes
        closure = recover_closure(parents[b][:n]).astype(np.float64)
        columns = tuple(range(request.prefix_len, request.prefix_len + n))
        readings.append(Reading(b, columns, scene.ledger.row_slots(b), closure, closure))
    return Declaration(form, tuple(readings), window_free=scene.case.shape.window is not None)


def closures(declaration: Declaration, scene: Scene) -> list[np.ndarray[Any, np.dtype[np.bool_]]]:
    """(N_b, N_b) bool of each request: the tree block of what was declared."""
    return [tree_block(reading, scene) for reading in declaration.readings]


def tree_block(reading: Reading, scene: Scene) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(N_b, N_b) bool: which rows each row reads, out of any reading."""
    request = scene.case.requests[reading.request]
    n, p = request.num_nodes, request.prefix_len
    block = np.zeros((n, n), dtype=bool)
    for j, column in enumerate(reading.columns):
        if column >= p:
            block[:, column - p] = reading.high[:, j] > 0.3
    return block
