"""Faults of lengths a row: padded rows that are counted as if a step had given them a key."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Applies, Fault
from treeproof.faults.smallest import case, request
from treeproof.faults.tables import Rewrite, builds, rewritten


def _padded(x: VerifyInput) -> Tensor:
    """(T,) bool."""
    return (x.out_cache_loc == -1) | (x.out_cache_loc == x.kv.pad_slot)


def _line_grows(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    assert x.cache_seqlens is not None
    return {"cache_seqlens": x.cache_seqlens + _padded(x)}


def _list_grows(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    """Padding comes last in a padded batch; its list ends one key later."""
    assert x.kv_indptr is not None
    bounds = x.kv_indptr.clone()
    bounds[-1] += _padded(x)[-1]
    return {"kv_indptr": bounds}


def _by_line(backend: Backend) -> bool:
    """A table line a row; where there are lists as well, the table is the shared prefix's."""
    return "attend" in backend.stages and _LINES(backend) and not _LISTS(backend)


def _by_list(backend: Backend) -> bool:
    return "attend" in backend.stages and _LISTS(backend)


_LINES, _LISTS = builds("cache_seqlens", "page_table"), builds("kv_indptr", "kv_indices")


def _fault(variant: str, rewrite: Rewrite, applies: Applies) -> Fault:
    return Fault(
        family="padded-length-grows",
        variant=variant,
        says=f"a step adds a key to the {variant} of every row, padded ones included",
        sources=("B050",),
        stage="build",
        identity="contract",
        evidence="measured",
        cause="wrong-shape",
        smallest=case(request(pad_rows=1)),
        plant=lambda backend: rewritten(backend, rewrite),
        applies=applies,
    )


FAULTS = (_fault("line", _line_grows, _by_line), _fault("list", _list_grows, _by_list))
