"""Processes of a pytest session that died: what they were checking, as findings of the run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from treeproof.contract.event import Event
from treeproof.contract.failure import COLUMNS
from treeproof.engine.in_flight import InFlight
from treeproof.engine.loss import Lost, events_of_loss
from treeproof.engine.run_folder import BackendMeta, RunFolder
from treeproof.engine.supply import case_drawn
from treeproof.engine.worker import Task

UNIT = "lost"
"""Unit of the cases that were being checked; what drew them died with its process."""


def events_of_losses(folder: RunFolder, columns: Iterable[str]) -> list[Event]:
    """For each record that was left behind: the case, the loss, and a failure of the backend.

    The records are cleared away.
    """
    judged = frozenset(column for column in COLUMNS if column in set(columns))
    events: list[Event] = []
    for path in sorted(folder.in_flight.glob("*.json")):
        record = _read(path)
        path.unlink()
        if record is None or not record.backend:
            continue
        case = folder.read_case(record.case)
        blamed = BackendMeta(reference=record.backend, name=record.backend)
        lost = Lost(
            task=Task(record.task, case, (blamed,), judged), checks=(), at_work=blamed,
            stage=record.stage, how="crash", detail="the process of the test ended", gave_up=False,
            probe=record.probe,
        )  # fmt: skip
        events += [case_drawn(case, UNIT), *events_of_loss(lost, judged)]
    return events


def _read(path: Path) -> InFlight | None:
    line = path.read_bytes().partition(b"\n")[0]
    try:
        return msgspec.json.decode(line, type=InFlight)
    except msgspec.DecodeError:
        return None
