"""A lost worker: which check was at fault, and what that means for it."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from treeproof.contract.event import Checked, WorkerLost
from treeproof.contract.failure import Cell, Failure, Identity
from treeproof.engine.in_flight import InFlight, read_in_flight, record_path, trace_path
from treeproof.engine.last_frames import cause_of_death, last_frames
from treeproof.engine.last_frames import timed_out as timed_out_by_itself
from treeproof.engine.run_folder import BackendMeta, RunFolder, each_event, read_events
from treeproof.engine.worker import AFTERWARDS, NO_FILES, SPENT, Task

MOST_REMEMBERED = 64
"""Checks of a process that are tried again where it is lost."""
MAX_TRACE = 20_000
"""Characters of a traceback that are kept."""
MALFORMED = "malformed"
"""The probe that hands a build what no caller should: it ends a worker on other grounds than a case."""


@dataclass(frozen=True)
class Lost:
    """A task whose worker died. `checks` were finished before; `at_work` was being checked.

    `at_work` None: the worker was between two checks, or never began.
    """

    task: Task
    checks: tuple[Checked, ...]
    at_work: BackendMeta | None
    stage: str
    how: Literal["crash", "hang"]
    detail: str
    """How it ended, and where in the backend, in words."""
    gave_up: bool
    """The worker ended by itself, because its device took no more work or it had too many files open."""
    probe: str = ""
    """What the stage was run for."""
    trace: str = ""
    """The traceback that it left."""
    ran: tuple[tuple[str, str], ...] = ()
    """Case and backend of the last checks that the process came to the end of, the earliest first."""

    @property
    def words(self) -> str:
        return "\n".join(filter(None, (self.detail, self.trace)))

    @property
    def to_malformed(self) -> bool:
        """Whether it was lost over a malformed selection, and not over the case."""
        return self.probe == MALFORMED


def examine_loss(
    folder: RunFolder, task: Task, exit_code: int | None, timed_out: float | None
) -> Lost:
    """Read and clear away what the worker left behind.

    `exit_code` as multiprocessing gives it; None: unknown. `timed_out`: it was ended from outside
    after so many seconds without progress.
    """
    record = read_in_flight(folder.in_flight, task.number)
    trace = _read_trace(trace_path(folder.in_flight, task.number))
    checks = _finished_checks(folder, record)
    at_work = None
    if record is not None:
        over = {checked.backend for checked in checks}
        names = [b for b in task.backends if b.name == record.backend and b.name not in over]
        at_work = names[0] if names else None
    for path in (record_path, trace_path):
        path(folder.in_flight, task.number).unlink(missing_ok=True)
    seconds = timed_out_by_itself(trace) if timed_out is None else timed_out
    end = ending(exit_code) if seconds is None else f"no progress for {seconds:g} s"
    return Lost(
        task=task,
        checks=checks,
        at_work=at_work,
        stage="" if record is None else record.stage,
        probe="" if record is None else record.probe,
        how="crash" if seconds is None else "hang",
        detail=_ended(end, trace),
        trace=trace,
        gave_up=exit_code == SPENT and at_work is None,
        ran=_ran(folder, record),
    )


def _finished_checks(folder: RunFolder, record: InFlight | None) -> tuple[Checked, ...]:
    """Checks of the task that its worker has written down."""
    if record is None or not record.events:
        return ()
    path = folder.path / record.events
    if not path.exists():
        return ()
    events = read_events(path, record.offset)
    return tuple(event for event in events if isinstance(event, Checked))


def _ran(folder: RunFolder, record: InFlight | None) -> tuple[tuple[str, str], ...]:
    """A process writes into a file of its own."""
    path = folder.path / record.events if record is not None and record.events else None
    if path is None or not path.exists():
        return ()
    events = (event for _, event in each_event(path))
    checks = ((event.case, event.backend) for event in events if isinstance(event, Checked))
    return tuple(deque(checks, MOST_REMEMBERED))


def _read_trace(path: Path) -> str:
    """What the dying process wrote of itself."""
    try:
        with path.open(errors="replace") as stream:
            return stream.read(MAX_TRACE).strip()
    except OSError:
        return ""


def _ended(end: str, trace: str) -> str:
    """How a process ended, of what, and where it was."""
    cause, frames = cause_of_death(trace), last_frames(trace)
    said = f"{end} ({cause})" if cause else end
    return f"{said}, in {frames}" if frames else said


def ending(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None:
        return "the worker process ended without a word, or could not start"
    if exit_code == NO_FILES:
        return "the worker process could open no more files"
    if exit_code >= 0:
        return f"the worker process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"the worker process ended by {name}{hint}"


def events_of_loss(lost: Lost, columns: Iterable[Identity]) -> tuple[WorkerLost, Checked]:
    """The loss, and a contract failure of the backend that was being checked."""
    assert lost.at_work is not None
    backend, case = lost.at_work.name, lost.task.case.id
    when = "after its check" if lost.stage == AFTERWARDS else f"in stage {lost.stage}"
    handed = ", handed a malformed selection of three rows" if lost.to_malformed else ""
    failure = Failure(
        identity="contract",
        kind=f"{MALFORMED}-{lost.how}" if lost.to_malformed else lost.how,
        evidence="measured",
        stage=lost.stage,
        message=f"{backend} {when}{handed}: {lost.detail}",
        severity=lost.how,
        probe=MALFORMED if lost.to_malformed else "",
    )
    cell = Cell(identity="contract", evidence="measured", status="fail", stage=lost.stage)
    others = not_checked(columns, f"its worker was lost: {lost.how}")
    return (
        WorkerLost(case=case, backend=backend, how=lost.how, detail=lost.words),
        Checked(case=case, backend=backend, cells=(*others, cell), failures=(failure,)),
    )


def unexplained(lost: Lost) -> WorkerLost:
    """The loss, and nobody to blame."""
    names = [backend for _, backend in lost.ran] + [
        b.name for b in (lost.at_work,) if b is not None
    ]
    shared = tuple(reversed(dict.fromkeys(reversed(names))))
    return WorkerLost(
        case=lost.task.case.id, backend="", how=lost.how, detail=lost.words, shared=shared
    )


def with_loss(one: Checked, other: Checked) -> Checked:
    """Two checks of one backend on one case as one: where a malformed selection cost the worker, the
    case was checked again without; what costs one late was judged before. Else the later one stands."""
    lost = next((c for c in (one, other) if any(f.severity != "wrong" for f in c.failures)), None)
    if lost is None:
        return other
    again = other if lost is one else one
    contract = tuple(cell for cell in lost.cells if cell.identity == "contract")
    cells = tuple(cell for cell in again.cells if cell.identity != "contract")
    return msgspec.structs.replace(
        again, cells=(*cells, *contract), failures=(*again.failures, *lost.failures)
    )


def not_checked(columns: Iterable[Identity], reason: str) -> tuple[Cell, ...]:
    """Cells that say why nothing was judged; contract, which always is, left out."""
    return tuple(
        Cell(identity=column, evidence="measured", status="not-checked", stage="", reason=reason)
        for column in columns
        if column != "contract"
    )
