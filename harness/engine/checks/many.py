"""The same small tree in many requests: what laws of sampled acceptance are measured on."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from treeproof.backends.reference import build as build_reference
from treeproof.contract.case import KVLayout, MaskLayout, Request, VerifyCase, pages_needed
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble

_LANES = 64
"""Of a key: enough for the slots of a launch to be told apart."""


def many(trial: Trial, parents: tuple[int, ...], count: int) -> VerifyInput | None:
    """What the backend's `sample` sees of so many requests, node i in row i, in the shape and layout of
    its case; None where that is outside its capabilities."""
    case = _case(parents, count, trial.case.shape, trial.case.layout)
    if trial.backend.capabilities.refusal(case, trial.options.device) is not None:
        return None
    made = build_reference(staged(case, trial.options.device)[1])
    x: VerifyInput = garble(made, trial.backend.consumes, trial.case.seed)
    return x


@lru_cache(maxsize=32)
def _case(
    parents: tuple[int, ...], count: int, shape: AttentionShape, layout: KVLayout
) -> VerifyCase:
    rows = tuple(range(len(parents)))
    one = Request(tree=CandidateTree(rows, parents), row_of_node=rows, prefix_len=1)
    requests = (one,) * count
    layout = msgspec.structs.replace(layout, shared_prefix=0, evicted=False, page_table_pad=0)
    slots = pages_needed(requests, layout) * layout.page_size
    if slots > 1 << min(shape.head_dim, shape.v_head_dim):
        shape = msgspec.structs.replace(shape, head_dim=_LANES, v_head_dim=_LANES)
    layout = msgspec.structs.replace(layout, num_slots=slots)
    return VerifyCase(requests=requests, shape=shape, layout=layout, mask=MaskLayout())
