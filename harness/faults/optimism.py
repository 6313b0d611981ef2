"""Faults of a host that runs ahead: lengths as if the round before had accepted every level."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.smallest import case, request
from treeproof.faults.tables import builds, rewritten


def _real(c: Candidates) -> Tensor:
    """(T,) bool."""
    counts = zip(c.num_rows.tolist(), c.num_nodes.tolist(), strict=True)
    real = [row < nodes for rows, nodes in counts for row in range(rows)]
    return torch.tensor(real, device=c.num_rows.device)


def _positions(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    return {"positions": torch.where(_real(c), x.positions + c.spec_steps, x.positions)}


def _slots(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    """Columns from P + spec_steps on; past the request's end the table holds its padding."""
    slots = x.out_cache_loc.clone()
    firsts = c.num_rows.cumsum(0) - c.num_rows
    for b, (first, nodes) in enumerate(zip(firsts.tolist(), c.num_nodes.tolist(), strict=True)):
        column = int(c.seq_lens[b]) + c.spec_steps + torch.arange(nodes, device=slots.device)
        table = c.req_to_token[c.request_slots[b]]
        slots[first : first + nodes] = table[column.clamp(max=len(table) - 1)]
    return {"out_cache_loc": slots}


FAULTS = (
    Fault(
        family="optimistic-lengths",
        variant="positions",
        says="positions begin where they would if every level had been accepted before",
        sources=("B084", "vllm-project/vllm-ascend#10032"),
        stage="build",
        identity="position",
        evidence="declared",
        cause="boundary-optimistic",
        smallest=case(request()),
        plant=lambda backend: rewritten(backend, _positions),
        applies=builds("positions"),
    ),
    Fault(
        family="optimistic-lengths",
        variant="slots",
        says="slots begin where they would if every level had been accepted before",
        sources=("B084", "vllm-project/vllm-ascend#10032"),
        stage="build",
        identity="kv",
        evidence="declared",
        cause="boundary-optimistic",
        smallest=case(request()),
        plant=lambda backend: rewritten(backend, _slots),
        applies=builds("out_cache_loc"),
    ),
)
