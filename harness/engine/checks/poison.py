"""What is loud and may not be read: launched over, and looked at, with no influence on any output."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.random_launch import (
    against_oracle,
    launch_random,
    same_launches,
    same_rows,
    showing,
    unwritten_shows,
)
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble, tensors_of
from treeproof.properties.answers import Answer
from treeproof.properties.contract import Finite
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import AttendCall, Contents, Launched, launched
from treeproof.properties.violation import Violation, contract_failure, held


class Loud:
    """The same data over loud poison and other garbage, launched; what it gave is looked at later."""

    def __init__(
        self, trial: Trial, attend: AttendCall, x: VerifyInput, laid: Contents, quiet: Launched
    ) -> None:
        other = garble(x, trial.backend.consumes, trial.case.seed + 1)
        poisoned = random_data.over(trial.scene, laid, random_data.LOUD)

        def run() -> tuple[Launched, Finite, Answer]:
            done, finite = launched(showing(attend), trial.scene, other, poisoned, "random")
            differs = (~same_rows(trial, quiet, done)).any()
            return done, finite, trial.scene.answers.ask(differs)

        self._trial, self._run = trial, held(run)

    def launched(self) -> tuple[Launched, bool] | None:
        """With whether it differs from the quiet launch; None where NaN came through."""
        trial = self._trial
        try:
            done, finite, differs = self._run()
            finite.require()
        except Violation as violation:
            if violation.failure.kind != "not-finite":
                raise
            failure = msgspec.structs.replace(
                violation.failure,
                identity="kv",
                kind="unowned-influences",
                message=f"{violation.failure.message} (there was NaN in pages that no table names)",
            )
            if trial.wants("kv", "measured"):
                trial.judged("kv", "measured", "attend", [failure])
            return None
        return done, bool(differs)


def judge_poison(
    trial: Trial,
    attend: AttendCall,
    x: VerifyInput,
    seen: VerifyInput,
    quiet: Launched,
    loud: Loud,
) -> None:
    came = loud.launched()
    if came is None:
        return
    done, differs = came
    if trial.backend.capabilities.deterministic:
        if differs:
            _judge_influence(trial, attend, x, seen, quiet)
    elif trial.wants("kv", "measured") and not against_oracle(trial, quiet)[0]:
        # Bits may differ from launch to launch; the bound holds whatever lies beside the keys.
        moved, _ = against_oracle(trial, done)
        if moved:
            trial.judged("kv", "measured", "attend", [_influences(moved[0].request, moved[0].row)])


def _judge_influence(
    trial: Trial,
    attend: AttendCall,
    x: VerifyInput,
    seen: VerifyInput,
    quiet: Launched,
) -> None:
    """Outputs depend on memory nobody holds, or on fields not declared as read: which."""
    with unwritten_shows():
        # Twice: a kernel that alternates would otherwise look like one that peeks.
        again = [launch_random(trial, attend, x, seen, random_data.QUIET) for _ in range(2)]
        memory = launch_random(trial, attend, x, seen, random_data.LOUD)
    if not all(same_launches(trial, quiet, one) for one in again):
        message = (
            "the same launch twice gives other bits; declare deterministic=False if that is meant"
        )
        trial.note(contract_failure("nondeterministic", "attend", message))
    elif not same_launches(trial, quiet, memory):
        if trial.wants("kv", "measured"):
            trial.judged("kv", "measured", "attend", [_influence(trial, quiet, memory)])
    else:
        named = _undeclared(trial, attend, x, seen, quiet)
        message = f"outputs depend on {', '.join(named) or 'fields'} not named in consumes"
        trial.note(contract_failure("reads-undeclared-input", "attend", message))


def _undeclared(
    trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput, quiet: Launched
) -> list[str]:
    """Fields outside `consumes` whose garbage alone changes the outputs."""
    other = garble(x, trial.backend.consumes, trial.case.seed + 1)
    named = []
    for name in tensors_of(x):
        if name not in trial.backend.consumes:
            mixed = replace(seen, **{name: getattr(other, name)})
            done = launch_random(trial, attend, x, mixed, random_data.QUIET)
            if not same_launches(trial, quiet, done):
                named.append(name)
    return named


def _influence(trial: Trial, quiet: Launched, memory: Launched) -> Failure:
    first = int((~same_rows(trial, quiet, memory)).nonzero()[0, 0])
    b, row = trial.scene.rows[trial.scene.real[first]]
    return _influences(b, row)


def _influences(b: int | None, row: int | None) -> Failure:
    return Failure(
        identity="kv",
        kind="unowned-influences",
        evidence="measured",
        stage="attend",
        request=b,
        row=row,
        message=f"the output of request {b}, row {row} depends on memory that no row may read "
        "(free slots, page tails, stale contents or padding)",
    )
