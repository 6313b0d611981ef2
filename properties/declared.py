"""Declared visibility: the mask, lists, page tables or links that decide what a kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from treeproof.contract.case import MaskMode
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import recover_links
from treeproof.properties.visibility import (
    FOREIGN,
    Reading,
    declared_reading,
    recover_closure,
    recover_lists,
    recover_mask,
    recover_mask_prefix,
    recover_pages,
)


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
    rows = len(scene.rows)
    if "kv_indices" in tables and "kv_indptr" in tables:
        return bool(tables["kv_indptr"].shape[0] == rows + 1)
    return (
        "page_table" in tables
        and "cache_seqlens" in tables
        and (tables["page_table"].shape[0] == rows)
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
    total = len(scene.rows)
    lists: list[tuple[int, ...]]
    if "kv_indices" in tables and tables["kv_indptr"].shape[0] == total + 1:
        start = tables["kv_start"].tolist() if "kv_start" in tables else None
        lists = recover_lists(tables["kv_indptr"].tolist(), tables["kv_indices"].tolist(), start)
        form = "lists of slots"
        if "page_table" in tables and "cache_seqlens" in tables:
            lengths = tables["cache_seqlens"].tolist()
            paged = recover_pages(tables["page_table"].tolist(), lengths, page)
            of_row = [b for b, _ in scene.rows] if len(paged) != total else range(total)
            lists = [(*paged[line], *own) for line, own in zip(of_row, lists, strict=True)]
            form = "prefix pages and suffix lists"
    else:
        lists = recover_pages(tables["page_table"].tolist(), tables["cache_seqlens"].tolist(), page)
        form = "page tables"
    readings = []
    for b, request in enumerate(case.requests):
        first = case.qo_indptr[b]
        own = lists[first : first + request.num_nodes]
        readings.append(declared_reading(b, scene.ledger, own))
    uncut = case.shape.window is not None and "kv_start" not in tables
    return Declaration(form, tuple(readings), window_free=uncut)


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
