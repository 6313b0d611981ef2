"""Faults that need company: requests or padded rows beside a request change what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request

Change = Callable[[VerifyInput, Tensor], Tensor]
"""Outputs (T, Hq, Dv) to wrong ones."""


def _outputs(change: Change) -> Callable[[Backend], Backend]:
    def around(right: Callable[..., Any], x: VerifyInput, *tensors: Tensor) -> Any:
        done = right(x, *tensors)
        if isinstance(done, Attended):
            return replace(done, out=change(x, done.out.clone()))
        return change(x, done.clone())

    return lambda backend: wrapped(backend, "attend", around)


def _first_rows_mixed(x: VerifyInput, out: Tensor) -> Tensor:
    """The first row of every request but the first shares the one before it."""
    first = x.qo_indptr[:-1]
    mixed = out.clone()
    mixed[first[1:]] = ((out[first[1:]].float() + out[first[:-1]].float()) / 2).to(out.dtype)
    return mixed


def _last_request_one_row_late(x: VerifyInput, out: Tensor) -> Tensor:
    """From two requests on, each row of the last one is given what the row before it should be."""
    first = int(x.qo_indptr[-2])
    if first:
        out[first:] = out[first - 1 : -1].clone()
    return out


def _empty_rows_spread(x: VerifyInput, out: Tensor) -> Tensor:
    """A padded row sums over nothing, and shares its tile with the row before it."""
    padded = (x.out_cache_loc == -1) | (x.out_cache_loc == x.kv.pad_slot)
    tile = padded | torch.cat([padded[1:], padded[:1]])
    out[tile] = float("nan")
    return out


def _tells_requests_apart(backend: Backend) -> bool:
    return "attend" in backend.stages and "qo_indptr" in backend.consumes


def _tells_padding_apart(backend: Backend) -> bool:
    return "attend" in backend.stages and "out_cache_loc" in backend.consumes


FAULTS = (
    Fault(
        family="batch-mixed",
        variant="first-rows",
        says="where requests are verified together, their first rows run into each other",
        sources=("B090",),
        stage="attend",
        identity="output",
        evidence="measured",
        cause="unknown",
        smallest=case(request(), request()),
        plant=_outputs(_first_rows_mixed),
        applies=_tells_requests_apart,
    ),
    Fault(
        family="batch-mixed",
        variant="one-row-late",
        says="where requests are verified together, the last one's outputs come one row late",
        sources=("B090",),
        stage="attend",
        identity="output",
        evidence="measured",
        cause="unknown",
        smallest=case(request(), request()),
        plant=_outputs(_last_request_one_row_late),
        applies=_tells_requests_apart,
    ),
    Fault(
        family="empty-row-spreads",
        says="a padded row has no keys, and its NaN takes the row beside it along",
        sources=("B086",),
        stage="attend",
        identity="contract",
        evidence="measured",
        cause="nan-empty-row",
        smallest=case(request(pad_rows=1)),
        plant=_outputs(_empty_rows_spread),
        applies=_tells_padding_apart,
    ),
)
