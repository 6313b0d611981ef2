"""One reproducer run again: is it fixed?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.event import Checked, Sanitized
from treeproof.contract.failure import Failure
from treeproof.contract.registry import BackendError
from treeproof.contract.wire import Reproducer
from treeproof.engine.alone import check_alone
from treeproof.engine.blame import LINGER
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.engine.worker import CHECKER


class Outcome(StrEnum):
    FAILED = "FAILED"
    """It fails in the same way still."""
    FIXED = "FIXED"
    """The identity was judged and holds."""
    ERROR = "ERROR"
    """It could not be found out."""


@dataclass(frozen=True)
class Replay:
    """What came of it. `failures` has every failure seen, those of another kind included."""

    outcome: Outcome
    detail: str
    checked: Checked | None = None
    sanitized: Sanitized | None = None
    """What compute-sanitizer said, where it was asked and the case fails."""

    @property
    def failures(self) -> tuple[Failure, ...]:
        return () if self.checked is None else self.checked.failures


def replay(
    reproducer: Reproducer,
    backend: str,
    *,
    device: str | None = None,
    profile: str = "quick",
    launch_timeout: float = 60.0,
    in_process: bool = False,
    checker: str = CHECKER,
) -> Replay:
    """Check the case of a reproducer on a backend, as `check_alone` does.

    `device` None is the reproducer's. Raises InternalError where treeproof itself fails.
    """
    try:
        checked = check_alone(
            reproducer.case,
            backend,
            device=device or reproducer.device,
            profile=profile,
            launch_timeout=launch_timeout,
            in_process=in_process,
            checker=checker,
            linger=_linger(reproducer),
        )
    except (BackendError, BackendUnavailable) as error:
        return Replay(Outcome.ERROR, str(error))
    return _judge(reproducer, checked)


def replay_as_run(
    reproducer: Reproducer,
    backend: str,
    *,
    device: str | None = None,
    launch_timeout: float = 60.0,
    in_process: bool = False,
    run_dir: Path | None = None,
    sanitize: bool = False,
    checker: str = CHECKER,
) -> tuple[Replay, Run]:
    """The same as a run of its own, from which reports can be made; its folder is `run_dir` or a new one.
    `sanitize`: and under compute-sanitizer, where it fails.

    Raises BackendError where the backend is not there, SettingsError where compute-sanitizer is not.
    """
    settings = RunSettings(
        backends=(backend,),
        device=device or reproducer.device,
        launch_timeout=launch_timeout,
        workers=0 if in_process else 1,
        seed=reproducer.seed,
        run_dir=run_dir,
        sanitize=sanitize,
        reduce=False,
        store=None,
    )
    found = run(
        settings,
        cases=[reproducer.case],
        checker=checker,
        explain=True,
        linger=_linger(reproducer),
    )
    if not found.checks:
        reason = found.finished.reason if found.finished is not None else ""
        return Replay(Outcome.ERROR, "; ".join(filter(None, (*found.missing, reason)))), found
    check = found.checks[0]
    sanitized = found.found.sanitized.get((check.case, check.backend))
    return replace(_judge(reproducer, found.whole(check)), sanitized=sanitized), found


def _linger(reproducer: Reproducer) -> float:
    """What ended a process may have done so after its check."""
    return LINGER if reproducer.failure.kind in ("crash", "hang") else 0.0


def _judge(reproducer: Reproducer, checked: Checked) -> Replay:
    identity, kind = reproducer.failure.identity, reproducer.failure.kind
    same = [f for f in checked.failures if f.key == (identity, kind)]
    others = sorted({f"{f.identity}: {f.kind}" for f in checked.failures} - {f"{identity}: {kind}"})
    if same:
        also = f"; it also fails in another way: {', '.join(others)}" if others else ""
        return Replay(Outcome.FAILED, f"{same[0].message}{also}", checked)
    beside = f"; it fails in another way: {', '.join(others)}" if others else ""
    cells = [cell for cell in checked.cells if cell.identity == identity]
    if any(cell.status == "fail" for cell in cells):
        return Replay(Outcome.FAILED, f"{identity} fails, though not as {kind}{beside}", checked)
    if not any(cell.status == "pass" for cell in cells):
        reasons = sorted({cell.reason for cell in cells if cell.reason})
        why = "; ".join(reasons) or "no evidence of it"
        return Replay(Outcome.ERROR, f"{identity} was not checked: {why}{beside}", checked)
    return Replay(Outcome.FIXED, f"{identity} holds on this case{beside}", checked)
