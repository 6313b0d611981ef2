"""Faults of a backend for chains: handed a tree it computes something else, or says no too late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.backends.reference.store import store_kv
from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.fault import Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

Beyond = Callable[[Callable[..., Attended], VerifyInput, tuple[Tensor, ...]], Attended]
"""What attend makes of a tree, where the right attend would know one."""


def _causal(
    right: Callable[..., Attended], x: VerifyInput, tensors: tuple[Tensor, ...]
) -> Attended:
    """Every row reads the rows of its request up to its own, as in a chain."""
    q, k, v, k_cache, v_cache = tensors
    store_kv(x, k, v, k_cache, v_cache)
    out = q.new_zeros(*q.shape[:2], v.shape[2])
    for b, (first, end) in enumerate(pairwise(x.qo_indptr.tolist())):
        line = x.req_to_token[x.request_slots[b]]
        slots = line[: int(x.seq_lens[b]) + end - first]
        keys, values = (
            c[slots].double().repeat_interleave(q.shape[1] // c.shape[1], 1)
            for c in (k_cache, v_cache)
        )
        scores = torch.einsum("nhd,mhd->hnm", q[first:end].double(), keys)
        last = torch.arange(len(slots) - (end - first), len(slots), device=q.device)
        hidden = torch.arange(len(slots), device=q.device) > last[:, None]
        p = (scores * x.shape.score_scale).masked_fill(hidden, -torch.inf).softmax(2)
        out[first:end] = torch.einsum("hnm,mhd->nhd", p, values).to(out)
    return Attended(out=out)


def _late(right: Callable[..., Attended], x: VerifyInput, tensors: tuple[Tensor, ...]) -> Attended:
    """It is only seen that this is a tree when its rows are written."""
    right(x, *tensors)
    raise NotImplementedError("topk is 2: accepted is 1")


def _for_chains(beyond: Beyond) -> Plant:
    """A backend for chains, whose attend knows a tree by a row that has a sibling."""

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Any) -> Attended:
        siblings = x.retrieve_next_sibling
        assert siblings is not None
        if bool((siblings >= 0).any()):
            return beyond(right, x, tensors)
        return right(x, *tensors)

    def plant(backend: Backend) -> Backend:
        able = msgspec.structs.replace(backend.capabilities, max_topk=1)
        seen = backend.consumes | {
            "retrieve_next_sibling",
            "qo_indptr",
            "seq_lens",
            "request_slots",
            "req_to_token",
            "out_cache_loc",
        }
        return wrapped(replace(backend, capabilities=able, consumes=seen), "attend", around)

    return plant


def _attends(backend: Backend) -> bool:
    return "attend" in backend.stages


_WRONG: tuple[Wrong[Beyond], ...] = (
    Wrong(
        "chains-not-guarded", "causal", "a backend for chains computes causal attention over a tree",
        "limit-not-guarded", _causal, case(request()), ("B018",),
    ),
    Wrong(
        "chains-not-guarded", "late", "a backend for chains refuses a tree once its rows are written",
        "limit-not-guarded", _late, case(request()), (),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="attend",
    identity="contract",
    evidence="measured",
    plant=_for_chains,
    applies=_attends,
)
