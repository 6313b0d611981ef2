"""What rows are told to see, changed in whatever a build tells them by: a mask, lists, table lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.contract.backend import Backend
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.tables import builds, rewritten

Parents = Sequence[Sequence[int]]
"""Parent row of each real row, a list a request; -1 for the root."""

Sees = Callable[[Parents], list[list[list[int]]]]
"""The rows of its own request that each row is told to see, a list a request."""


def seeing(backend: Backend, sees: Sees) -> Backend:
    """The backend whose build tells its rows to see what `sees` says; prefix and padding stay.

    A row that would see nothing at all, without a prefix, is left as it was.
    """

    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, Any]:
        parents = _parents(x, c)
        seen = sees(parents)
        changed: dict[str, Any] = {}
        if x.custom_mask is not None:
            changed["custom_mask"] = _in_mask(x, c, seen)
        if _has_lists(x):
            changed |= _in_lists(x, parents, seen)
        elif _has_lines(x):
            changed |= _in_lines(x, parents, seen)
        return changed

    return rewritten(backend, rewrite)


def tells_rows(backend: Backend) -> bool:
    """Whether it builds, and reads, a mask or a list or table line a row."""
    return "attend" in backend.stages and any(
        builds(*names, "retrieve_parent_token")(backend) and backend.consumes.issuperset(names)
        for names in (
            ("custom_mask", "mask_indptr"),
            ("kv_indices", "kv_indptr"),
            ("page_table", "cache_seqlens"),
        )
    )


def path(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root down to this one; a circle of parents is gone round once."""
    found = [row]
    while 0 <= parents[found[0]] not in found:
        found.insert(0, parents[found[0]])
    return found


def _parents(x: VerifyInput, c: Candidates) -> Parents:
    assert x.retrieve_parent_token is not None
    tables = x.retrieve_parent_token.tolist()
    return [table[:nodes] for table, nodes in zip(tables, c.num_nodes.tolist(), strict=True)]


def _has_lists(x: VerifyInput) -> bool:
    return x.kv_indptr is not None and len(x.kv_indptr) == len(x.positions) + 1


def _has_lines(x: VerifyInput) -> bool:
    return x.page_table is not None and len(x.page_table) == len(x.positions)


def _in_mask(x: VerifyInput, c: Candidates, seen: list[list[list[int]]]) -> Tensor:
    assert x.custom_mask is not None
    assert x.mask_indptr is not None
    mask, starts = x.custom_mask.clone(), x.mask_indptr.tolist()
    for b, (count, prefix) in enumerate(zip(c.num_rows.tolist(), c.seq_lens.tolist(), strict=True)):
        for i, rows in enumerate(seen[b]):
            if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
                size = mask.element_size()
                item = sum(1 << row for row in set(rows)).to_bytes(4, "little")[:size]
                at = (starts[b] + i) * size
                mask.view(torch.uint8)[at : at + size] = torch.tensor(list(item), dtype=torch.uint8)
                continue
            skip = prefix if x.mask_mode is MaskMode.FULL_MASK else 0
            at = starts[b] + i * (skip + count) + skip
            mask[at : at + count] = False
            mask[[at + row for row in rows]] = True
    return mask


def _in_lists(x: VerifyInput, parents: Parents, seen: list[list[list[int]]]) -> dict[str, Tensor]:
    """The end of a row's list, as long as its path, is exchanged."""
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    bounds, slots = x.kv_indptr.tolist(), x.kv_indices.tolist()
    lists = [slots[lo:hi] for lo, hi in pairwise(bounds)]
    _exchange(x, parents, seen, lists)
    changed = {
        "kv_indptr": x.kv_indptr.new_tensor([0, *accumulate(map(len, lists))]),
        "kv_indices": x.kv_indices.new_tensor([slot for line in lists for slot in line]),
    }
    if x.kv_start is not None:
        # A window must not cut a list that became shorter down to nothing.
        last = x.kv_start.new_tensor([len(line) - 1 for line in lists])
        changed["kv_start"] = torch.minimum(x.kv_start, last)
    return changed


def _in_lines(x: VerifyInput, parents: Parents, seen: list[list[list[int]]]) -> dict[str, Tensor]:
    assert x.page_table is not None
    assert x.cache_seqlens is not None
    lists = [
        line[:n] for line, n in zip(x.page_table.tolist(), x.cache_seqlens.tolist(), strict=True)
    ]
    _exchange(x, parents, seen, lists)
    lengths = list(map(len, lists))
    table = pad(x.page_table, (0, max(0, max(lengths) - x.page_table.shape[1])))
    for row, line in enumerate(lists):
        table[row, : len(line)] = table.new_tensor(line)
    return {"page_table": table, "cache_seqlens": x.cache_seqlens.new_tensor(lengths)}


def _exchange(
    x: VerifyInput, parents: Parents, seen: list[list[list[int]]], lists: list[list[int]]
) -> None:
    """The end of each row's list, as long as the row's path, becomes the slots of what it sees."""
    homes = x.out_cache_loc.tolist()
    for first, up, of_request in zip(x.qo_indptr.tolist(), parents, seen, strict=False):
        for i, rows in enumerate(of_request):
            kept = lists[first + i][: -len(path(up, i))]
            lists[first + i] = kept + [homes[first + row] for row in rows] or lists[first + i]
