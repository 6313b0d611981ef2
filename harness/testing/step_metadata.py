"""The tables an engine built for one verify step, each held to the drawn tree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.case import MaskMode
from treeproof.contract.failure import Evidence, Failure, Identity, Recovered
from treeproof.properties import candidate, contract, kv, position, traversal
from treeproof.properties.declared import closures, declarations
from treeproof.properties.key_table import judge_key_tables
from treeproof.properties.scene import Scene
from treeproof.properties.tables import Slots, recover_lists, recover_pages, recover_parents
from treeproof.properties.violation import Violation, raised
from treeproof.properties.visibility import judge
from treeproof.testing.arguments import mask_mode_of
from treeproof.testing.step_tensors import cpu_tensor


class StepMetadata(TypedDict, total=False):
    """Tables of `VerifyInput`, by its names and in its layouts; tensors, arrays or lists."""

    draft_token: Any
    """(T,) token of each row; needs `tokens`."""
    positions: Any
    """(T,) P + depth."""
    custom_mask: Any
    """Flat in the layout of `mask_mode`, or one (R_b, P_b + R_b) or (R_b, R_b) mask a request."""
    mask_indptr: Any
    """(B+1,) first cell of each request in a flat mask; without it one follows the other."""
    mask_mode: str | MaskMode
    """FULL_MASK (the default), QLEN_ONLY or QLEN_ONLY_BITPACKING."""
    fill_prefix: bool
    """False: prefix cells of a FULL_MASK are not read and may hold anything."""
    retrieve_index: Any
    retrieve_next_token: Any
    retrieve_next_sibling: Any
    retrieve_parent_token: Any
    """(B, Nmax) each, -1 none."""
    out_cache_loc: Any
    """(T,) slot of each row; needs `slots`."""
    kv_indptr: Any
    kv_indices: Any
    """One list of slots a row (T+1 bounds) or a request (B+1 bounds: prefix, or prefix and rows)."""
    kv_start: Any
    """(T,) entries cut off the front of each row's list by the window."""
    page_table: Any
    cache_seqlens: Any
    """(B, pages) pages of a request, or (T, keys) slots of a row, and how many keys they cover.
    Beside lists that belong to rows, the pages of a request come before each list."""


_TOGETHER = (
    ("mask_indptr", "custom_mask"),
    ("mask_mode", "custom_mask"),
    ("fill_prefix", "custom_mask"),
    ("kv_indptr", "kv_indices"),
    ("kv_indices", "kv_indptr"),
    ("kv_start", "kv_indices"),
    ("page_table", "cache_seqlens"),
    ("cache_seqlens", "page_table"),
    ("retrieve_next_token", "retrieve_next_sibling"),
    ("retrieve_next_sibling", "retrieve_next_token"),
)
NEED_SLOTS = ("out_cache_loc", "kv_indices", "page_table")


def require_complete(given: Mapping[str, Any]) -> None:
    """Every name is known and stands with the names it needs. Raises ValueError."""
    known = StepMetadata.__annotations__
    for name in given:
        if name not in known:
            raise ValueError(f"check_step takes no {name}; metadata are {', '.join(known)}")
    for name, other in _TOGETHER:
        if name in given and other not in given:
            raise ValueError(f"{name} needs {other}, which was not given")


@dataclass
class Findings:
    """What has been judged so far."""

    failures: list[Failure] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    judged: int = 0

    def add(self, failures: Sequence[Failure]) -> None:
        self.judged += 1
        self.failures += failures

    def recover(self, identity: Identity, evidence: Evidence, what: Any, values: Any) -> None:
        self.recovered.append(
            Recovered(identity=identity, evidence=evidence, what=what, values=values)
        )


def judge_metadata(scene: Scene, given: Mapping[str, Any], findings: Findings) -> None:
    """Hold every table in `given` to the tree and the slots of the scene."""
    tables: dict[str, Any] = {
        name: value if name == "custom_mask" else cpu_tensor(name, value)
        for name, value in given.items()
        if name not in ("mask_mode", "fill_prefix")
    }
    try:
        plain = {name: t for name, t in tables.items() if name != "custom_mask"}
        contract.valid_built(plain, scene)
    except Violation as violation:
        findings.add([violation.failure])
        return
    _rows(scene, tables, findings)
    _links(scene, tables, findings)
    if "custom_mask" in tables:
        mode = mask_mode_of(given.get("mask_mode", MaskMode.FULL_MASK))
        mask, indptr = _flat_mask(scene, tables["custom_mask"], tables.get("mask_indptr"), mode)
        _visibility(scene, {"custom_mask": mask, "mask_indptr": indptr}, mode, findings)
    _key_tables(scene, tables, findings)


def _rows(scene: Scene, tables: Mapping[str, Tensor], findings: Findings) -> None:
    """Tables with one number a row."""
    case = scene.case
    if "draft_token" in tables:
        tokens = candidate.recover_tokens(tables["draft_token"].tolist(), case.qo_indptr)
        findings.recover("candidate", "declared", "tokens", tokens)
        findings.add(candidate.judge(case, tokens, "declared", "build"))
    if "positions" in tables:
        prefixes = [request.prefix_len for request in case.requests]
        depths = position.recover_depths(tables["positions"].tolist(), case.qo_indptr, prefixes)
        findings.recover("position", "declared", "depths", depths)
        findings.add(position.judge_declared(case, depths))
    if "out_cache_loc" in tables:
        named = tables["out_cache_loc"].tolist()
        findings.add(kv.judge_out_cache_loc(scene, named, "build"))


def _links(scene: Scene, tables: Mapping[str, Tensor], findings: Findings) -> None:
    """Tables that describe the tree to the accept walk."""
    case = scene.case
    rows = [request.num_nodes for request in case.requests]
    found = []
    if "retrieve_next_token" in tables:
        names = ("retrieve_next_token", "retrieve_next_sibling")
        down, right = (tables[name].tolist() for name in names)
        found.append(traversal.recover_links(down, right, rows))
        for name, table in zip(names, (down, right), strict=True):
            findings.add(traversal.judge_link_cells(case, name, table, "build"))
    if "retrieve_parent_token" in tables:
        pointers = tables["retrieve_parent_token"].tolist()
        found.append(tuple(tuple(own[:n]) for own, n in zip(pointers, rows, strict=True)))
    for parents in found:
        findings.recover("traversal", "declared", "parents", parents)
        findings.add(traversal.judge_parents(case, parents, "build"))
    if "retrieve_index" in tables:
        index = tables["retrieve_index"].tolist()
        findings.add(traversal.judge_retrieve_index(case, index, "build"))


def _visibility(
    scene: Scene, tables: Mapping[str, Tensor], mode: MaskMode, findings: Findings
) -> None:
    """Tables that say row by row what is read."""
    try:
        found = declarations(scene, tables, mode)
    except (ValueError, IndexError) as error:
        findings.add([raised("build", error).failure])
        return
    for declaration in found:
        parents = tuple(recover_parents(closure) for closure in closures(declaration, scene))
        findings.recover("visibility", "declared", "parents", parents)
        for reading in declaration.readings:
            findings.add(
                judge(
                    scene.case, scene.ledger, reading, "declared",
                    window_free=declaration.window_free, stage="build",
                )
            )  # fmt: skip


def _key_tables(scene: Scene, tables: Mapping[str, Tensor], findings: Findings) -> None:
    """Lists of slots and page tables, one a row or one a request."""
    of_rows: dict[str, Tensor] = {}
    for form, fields in _KEY_TABLES.items():
        if form not in tables:
            continue
        own = {name: tables[name] for name in fields if name in tables}
        if _one_a_row(scene, form, own) or of_rows:
            of_rows |= own
            continue
        try:
            lists = _lists(form, own, scene.case.layout.page_size)
        except (ValueError, IndexError) as error:
            findings.add([raised("build", error).failure])
            continue
        findings.add(judge_key_tables(scene, form, lists))
    if of_rows:
        _visibility(scene, of_rows, MaskMode.FULL_MASK, findings)


def _one_a_row(scene: Scene, form: str, own: Mapping[str, Tensor]) -> bool:
    """Whether tables belong to rows; raises ValueError where there are as many as of neither.

    Where every request has one row both are the same, but for what a window cuts.
    """
    rows, requests = scene.num_rows, len(scene.case.requests)
    name, extra = ("kv_indptr", 1) if form == "kv_indices" else (form, 0)
    count = len(own[name]) - extra
    if count not in (rows, requests):
        raise ValueError(
            f"{name} has {count + extra} entries: accepted are {requests + extra}, one table a "
            f"request, and {rows + extra}, one a row"
        )
    cut = "kv_start" in own or scene.case.shape.window is not None
    return count == rows and (rows != requests or cut)


def _lists(form: str, own: Mapping[str, Tensor], page: int) -> list[Slots]:
    table = own[form].numpy().astype(np.int64)
    if form == "kv_indices":
        return recover_lists(own["kv_indptr"].tolist(), table, None)
    return recover_pages(table, own["cache_seqlens"].tolist(), page)


def _flat_mask(
    scene: Scene, mask: Any, indptr: Tensor | None, mode: MaskMode
) -> tuple[Tensor, Tensor]:
    """The mask as one flat tensor, and the first cell of each request. Raises ValueError."""
    parts = mask if _is_one_a_request(mask) else [mask]
    tensors = [cpu_tensor("custom_mask", part) for part in parts]
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            raise ValueError(
                f"custom_mask has dtype {tensor.dtype}: accepted are bool (True: visible), 0 and 1, "
                "and bit-packed items"
            )
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    sizes = []
    for request in scene.case.requests:
        n = request.num_rows
        line = {MaskMode.FULL_MASK: request.prefix_len + n, MaskMode.QLEN_ONLY: n}.get(mode, 1)
        sizes.append(n * line)
    starts = [0, *itertools.accumulate(sizes)]
    if indptr is not None:
        starts = [int(start) for start in indptr.tolist()]
        if len(starts) != len(sizes) + 1:
            raise ValueError(
                f"mask_indptr has {len(starts)} entries: {len(sizes) + 1} are accepted"
            )
    needed = max(start + size for start, size in zip(starts, sizes, strict=False))
    shaped = len(tensors) > 1 or tensors[0].dim() > 1
    if flat.numel() < needed or min(starts) < 0 or (shaped and flat.numel() != needed):
        cells = f"{flat.numel()} cells"
        raise ValueError(f"custom_mask has {cells}: {mode.name} of these requests has {needed}")
    return flat, torch.tensor(starts)


def _is_one_a_request(mask: Any) -> bool:
    return isinstance(mask, list | tuple) and all(hasattr(part, "shape") for part in mask)


_KEY_TABLES = {
    "kv_indices": ("kv_indptr", "kv_indices", "kv_start"),
    "page_table": ("page_table", "cache_seqlens"),
}
