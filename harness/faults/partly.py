"""A fault in a part of the launches only: for one dtype, one batch size, one head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.plant import remembering

When = Callable[[VerifyInput, Tensor], bool]
"""Of what attend is handed and its queries: whether the fault shows."""


def when(right: Backend, wrong: Backend, condition: When) -> Backend:
    """The backend, which attends as the wrong one does where the condition holds."""

    def new() -> Callable[..., Any]:
        other = wrong.make()

        def around(attend: Callable[..., Any], x: VerifyInput, q: Tensor, *tensors: Tensor) -> Any:
            return (other.attend if condition(x, q) else attend)(x, q, *tensors)

        return around

    return remembering(right, "attend", new)


def in_one_head(right: Backend, wrong: Backend, head: int) -> Backend:
    """The backend, one of whose query heads attends as the wrong one does."""

    def new() -> Callable[..., Any]:
        other = wrong.make()

        def around(attend: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
            done, differs = attend(x, *tensors), other.attend(x, *tensors)
            out = done.out.clone()
            out[:, head] = differs.out[:, head]
            lse = done.lse
            if lse is not None and differs.lse is not None:
                lse = lse.clone()
                lse[:, head] = differs.lse[:, head]
            return replace(done, out=out, lse=lse)

        return around

    return remembering(right, "attend", new)
