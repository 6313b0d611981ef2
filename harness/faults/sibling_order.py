"""Faults of the order of siblings: links that go through them from the last, and a walk that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, Candidates, VerifyInput
from treeproof.contract.sampling import TARGET_ONLY, Sampling
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.samples import Sample
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.tables import builds, rewritten

_DOWN, _RIGHT = "retrieve_next_token", "retrieve_next_sibling"


def from_the_last(x: VerifyInput) -> dict[str, Any]:
    """Both tables, each row's children the other way round."""
    assert x.retrieve_next_token is not None
    assert x.retrieve_next_sibling is not None
    down = x.retrieve_next_token.clone()
    right = torch.full_like(x.retrieve_next_sibling, -1)
    tables = (x.retrieve_next_token.tolist(), x.retrieve_next_sibling.tolist())
    for b, (first, onward) in enumerate(zip(*tables, strict=True)):
        for row, child in enumerate(first):
            before = -1
            while child >= 0:
                right[b, child] = before
                before, child = child, onward[child]
            down[b, row] = before
    return {_DOWN: down, _RIGHT: right}


def _built(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    return from_the_last(x)


def _walked(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    return right(replace(x, **from_the_last(x)), given)


FAULTS = (
    Fault(
        family="siblings-from-the-last",
        variant="linked",
        says="links go through the children of a row from the last one, which nobody was told",
        sources=(),
        stage="build",
        identity="traversal",
        evidence="declared",
        cause="unknown",
        smallest=case(request(FORK)),
        plant=lambda backend: rewritten(backend, _built),
        applies=lambda backend: (
            builds(_DOWN, _RIGHT)(backend) and backend.capabilities.sibling_order == "ascending"
        ),
    ),
    Fault(
        family="siblings-from-the-last",
        variant="walked",
        says="sampled acceptance asks the children of a row from the last one on",
        sources=(),
        stage="sample",
        identity="traversal",
        evidence="measured",
        cause="unknown",
        smallest=case(request(FORK)),
        plant=lambda backend: wrapped(backend, "sample", _walked),
        applies=lambda backend: (
            "sample" in backend.stages and TARGET_ONLY in backend.capabilities.sampling
        ),
    ),
)
