"""Faults of sliding windows: where a window is cut, and by what it is counted."""

from __future__ import annotations

from treeproof.contract.backend import Backend
from treeproof.faults.fault import Fault
from treeproof.faults.plant import edited
from treeproof.faults.smallest import FORK, case, request

_BY_ROW = {
    "direct-mask": (
        "index = torch.cat([torch.arange(start - prefix, 0, device=q.device), depth])\n"
        "                visible = visible & (index > depth[:, None] - window)",
        "row = torch.arange(len(depth), device=q.device)\n"
        "                index = torch.cat([torch.arange(start - prefix, 0, device=q.device), row])\n"
        "                visible = visible & (index > row[:, None] - window)",
    ),
}


def _by_row(backend: Backend) -> Backend:
    return edited(backend, _BY_ROW[backend.name])


FAULTS = (
    Fault(
        family="window-by-row",
        says="the window is counted in rows, which run ahead of depths among siblings",
        sources=("B031", "sgl-project/sglang#39287"),
        stage="attend",
        identity="visibility",
        evidence="measured",
        cause="window-by-row",
        smallest=case(request(FORK), window=2),
        plant=_by_row,
        applies=lambda backend: backend.name in _BY_ROW,
    ),
)
