"""A fault in a part of what is launched: for one dtype, one row count, some rows, one head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.launched import seen_by
from treeproof.faults.plant import remembering

When = Callable[[VerifyInput, Tensor], bool]
"""Of what attend is handed and its queries: whether the fault shows."""


def when(right: Backend, wrong: Backend, condition: When) -> Backend:
    """The backend, which attends as the wrong one does where the condition holds."""

    def new() -> Callable[..., Any]:
        other = wrong.make()

        def around(attend: Callable[..., Any], x: VerifyInput, q: Tensor, *tensors: Tensor) -> Any:
            shows = condition(seen_by(right, x), q)
            return (other.attend if shows else attend)(x, q, *tensors)

        return around

    return remembering(right, "attend", new)


def in_one_head(right: Backend, wrong: Backend, head: int) -> Backend:
    """The backend, one of whose query heads attends as the wrong one does."""

    def chosen(x: VerifyInput, out: Tensor) -> Tensor:
        return torch.arange(out.shape[1], device=out.device) == head % out.shape[1]

    return _mixed(right, wrong, chosen)


def in_later_rows(right: Backend, wrong: Backend) -> Backend:
    """The backend, which attends as the wrong one does in all rows but the root of each request."""

    def chosen(x: VerifyInput, out: Tensor) -> Tensor:
        later = torch.ones(len(out), 1, dtype=torch.bool, device=out.device)
        later[x.qo_indptr[:-1]] = False
        return later

    return _mixed(right, wrong, chosen)


def _mixed(
    right: Backend, wrong: Backend, chosen: Callable[[VerifyInput, Tensor], Tensor]
) -> Backend:
    """Outputs of the wrong backend where `chosen`, (T or 1, Hq or 1) bool, says so."""

    def new() -> Callable[..., Any]:
        other = wrong.make()

        def around(attend: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
            done, differs = attend(x, *tensors), other.attend(x, *tensors)
            where = chosen(seen_by(right, x), done.out)
            out, lse = torch.where(where[..., None], differs.out, done.out), done.lse
            if lse is not None and differs.lse is not None:
                lse = torch.where(where, differs.lse, lse)
            return replace(done, out=out, lse=lse)

        return around

    return remembering(right, "attend", new)
