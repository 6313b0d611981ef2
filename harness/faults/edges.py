"""Faults at the edges of buffers: what is read past an end, and what is never written."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import edited, wrapped
from treeproof.faults.smallest import case, request

_TILE = 16


def _whole_tiles(right: Callable[..., Any], x: VerifyInput, *tensors: Tensor) -> Any:
    """The mask is loaded by whole tiles of rows and keys, and only then tested for its bounds."""
    if x.custom_mask is not None and x.mask_mode is not MaskMode.QLEN_ONLY_BITPACKING:
        assert x.mask_indptr is not None
        full = x.mask_mode is MaskMode.FULL_MASK
        starts = zip(x.mask_indptr.tolist(), pairwise(x.qo_indptr.tolist()), strict=False)
        for (start, (first, end)), prefix in zip(starts, x.seq_lens.tolist(), strict=True):
            rows = end - first
            width = rows + (prefix if full else 0)
            last = start + (_up(rows) - 1) * width + _up(width) - 1
            x.custom_mask[last].item()
    return right(x, *tensors)


def _up(count: int) -> int:
    """`count` in whole tiles."""
    return -(-count // _TILE) * _TILE


def _reads_mask(backend: Backend) -> bool:
    needed = {"custom_mask", "mask_indptr", "qo_indptr", "seq_lens"}
    return "attend" in backend.stages and needed <= backend.consumes


def _left_unwritten(backend: Backend) -> Backend:
    return edited(
        backend,
        ("out = q.new_zeros(*q.shape[:3], ", "out = q.new_empty(*q.shape[:3], "),
    )


FAULTS = (
    Fault(
        family="mask-read-by-tiles",
        says="the mask is read for rows and keys of the last tile that do not exist",
        sources=("B025", "flashinfer-ai/flashinfer#1008"),
        stage="attend",
        identity="contract",
        evidence="measured",
        cause="raises",
        smallest=case(request()),
        plant=lambda backend: wrapped(backend, "attend", _whole_tiles),
        applies=_reads_mask,
    ),
    Fault(
        family="empty-part-unwritten",
        says="the result of a part without keys is memory that nobody wrote",
        sources=("B038", "flashinfer-ai/flashinfer#1533"),
        stage="attend",
        identity="contract",
        evidence="measured",
        cause="unwritten-output",
        smallest=case(request()),
        plant=_left_unwritten,
        applies=lambda backend: backend.name == "cascade",
    ),
)
