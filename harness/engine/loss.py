"""What a lost worker means for the check it was running, as events."""

from __future__ import annotations

from collections.abc import Iterable

from treeproof.contract.event import Checked, WorkerLost
from treeproof.contract.failure import Cell, Failure, Identity
from treeproof.engine.worker_pool import Lost


def events_of_loss(lost: Lost, columns: Iterable[Identity]) -> tuple[WorkerLost, Checked]:
    """The loss, and a contract failure of the backend that was being checked."""
    assert lost.blamed is not None
    backend, case = lost.blamed.name, lost.task.case.id
    failure = Failure(
        identity="contract",
        kind=lost.how,
        evidence="measured",
        stage=lost.stage,
        message=f"{backend} in stage {lost.stage}: {lost.detail}",
        severity=lost.how,
    )
    cell = Cell(identity="contract", evidence="measured", status="fail", stage=lost.stage)
    others = not_checked(columns, f"its worker was lost: {lost.how}")
    return (
        WorkerLost(case=case, backend=backend, how=lost.how, detail=lost.detail),
        Checked(case=case, backend=backend, cells=(*others, cell), failures=(failure,)),
    )


def not_checked(columns: Iterable[Identity], reason: str) -> tuple[Cell, ...]:
    """Cells that say why nothing was judged; contract, which always is, left out."""
    return tuple(
        Cell(identity=column, evidence="measured", status="not-checked", stage="", reason=reason)
        for column in columns
        if column != "contract"
    )
