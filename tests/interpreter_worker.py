"""A process in which Triton interprets: the one that asks may have imported it compiled already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS

Ask = Callable[..., Any]
"""ask(function, *arguments): what the function gives in that process; it stands in a module."""

Edit = tuple[str, str, str]
"""A module of our kernels, a text that it holds once, and what to put there."""


@contextmanager
def interpreter() -> Iterator[Ask]:
    with ProcessPoolExecutor(1, get_context("spawn"), _interpret) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


def _interpret() -> None:
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    torch.set_num_threads(1)


def planted(reference: str, edit: Edit | None) -> Backend:
    """A backend, over kernels of ours that are edited."""
    from treeproof.contract.registry import load
    from treeproof.faults.kernel_text import kernel_edited

    backend = load(reference)
    return backend if edit is None else kernel_edited(backend, edit[0], edit[1:])


def checked(
    reference: str,
    case: VerifyCase,
    identities: frozenset[str] = frozenset(COLUMNS),
    edit: Edit | None = None,
) -> Checked:
    """Verdicts of a backend in these columns."""
    from treeproof.engine.check import CheckOptions, check_case

    return check_case(case, planted(reference, edit), CheckOptions(identities=identities))
