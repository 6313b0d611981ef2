"""What launches of attend show: outputs, writes, influence, reads, and the position of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.kernels import judge_kernels
from treeproof.engine.checks.outputs import judge_outputs
from treeproof.engine.checks.random_launch import unwritten_shows
from treeproof.engine.checks.stages import attend_call
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import position
from treeproof.properties.declared import tree_block
from treeproof.properties.pairing import Heard, judge_pairing
from treeproof.properties.probes.clock import read_clock
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.reading import (
    EverythingSummed,
    Measured,
    judge_measured,
    judge_screened,
    measure,
    screen,
)
from treeproof.properties.tables import recover_parents
from treeproof.properties.violation import Violation, held
from treeproof.properties.wanted import wanted

Steps = Iterator[None]
"""One step that launches, up to the yield, and one that looks at what came of it."""


def judge_launches(trial: Trial, x: VerifyInput) -> None:
    """All probes of attend; one that breaks the contract does not keep the others from running.

    Launches come before questions to the device, of all probes, so that it answers them at once.
    """
    if not trial.has("attend"):
        return
    attend = attend_call(trial, trial.instance, x)
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    judges = [(names[0], judge) for names, judge in _JUDGES if trial.runs(*names)]
    with trial.timed("probe"):
        early = not trial.broken
        begun = [(probe, judge, judge(trial, attend, x, seen)) for probe, judge in judges]
        if early:
            begun = [each for each in begun if _step(trial, each[0], each[2])]
        for probe, judge, steps in begun:
            if not trial.broken:
                _step(trial, probe, steps)
                continue
            # Once something is broken, memory left unwritten must not pass for an answer.
            again = judge(trial, attend, x, seen) if early else steps
            with unwritten_shows():
                if _step(trial, probe, again):
                    _step(trial, probe, again)


def _step(trial: Trial, probe: str, steps: Steps) -> bool:
    """Whether the step came to its end."""
    with trial.probing(probe):
        try:
            next(steps, None)
        except Violation as violation:
            trial.broke(violation)
            return False
    return True


def _visibility(trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> Steps:
    if not trial.wants("visibility", "measured"):
        return
    complete, numerics = trial.options.complete, trial.backend.numerics

    def listened() -> Heard | None:
        chorus = trial.runs("chorus")
        return Heard(attend, trial.scene, seen, numerics) if chorus else None

    summed: Callable[[], EverythingSummed] | None = None
    heard: Callable[[], Heard | None] = listened
    if _screens(trial):
        summed = held(lambda: EverythingSummed(attend, trial.scene, seen, numerics))
        heard = held(listened)
    yield
    failures: list[Failure] = []
    measured: Measured | None = None
    if summed is None or not summed().adds_up:
        measured = trial.measured = measure(attend, trial.scene, seen, complete=complete)
        if trial.runs("tomography"):
            failures += judge_measured(trial.scene, measured)
            recover_visibility(trial, measured)
        if trial.runs("checksum") and not complete:
            screened = screen(attend, trial.scene, seen, measured, numerics)
            failures += judge_screened(trial.scene, screened)
    if trial.runs("chorus", "spike"):
        failures += judge_pairing(
            attend, trial.scene, seen, measured if trial.runs("tomography") else None, heard(),
            probes=trial.options.probes, complete=complete,
        )  # fmt: skip
    trial.judged("visibility", "measured", "attend", failures)


def _screens(trial: Trial) -> bool:
    """Whether sums may stand for tomography where they are right: in bulk, but for one case in eight.

    A key that is let in with a weight near 0 moves no sum; tomography sees any weight. After a softcap
    hidden keys may weigh that little, so such cases are never screened.
    """
    options, case = trial.options, trial.case
    by_itself = case.shape.softcap is not None or options.due(case.seed, 0, 8)
    return options.bulk and not by_itself and {"tomography", "checksum"} <= options.probes


def recover_visibility(trial: Trial, measured: Measured) -> None:
    """The parents that what was read determines."""

    def parents() -> tuple[tuple[int | None, ...], ...]:
        return tuple(recover_parents(tree_block(r, measured.scene)) for r in measured.readings)

    trial.recover("visibility", "measured", "parents", parents)


def show_what_was_read(trial: Trial, x: VerifyInput) -> None:
    """Where something failed elsewhere: what each row read, which sums alone do not say."""
    wanted = trial.has("attend") and trial.wants("visibility", "measured") and _screens(trial)
    if wanted and trial.failures and trial.measured is None and not trial.broken:
        attend = attend_call(trial, trial.instance, x)
        seen = garble(x, trial.backend.consumes, trial.case.seed)
        with trial.timed("probe"), trial.probing("tomography"):
            try:
                measured = measure(attend, trial.scene, seen, complete=False)
            except Violation as violation:
                trial.broke(violation)
            else:
                recover_visibility(trial, measured)


def _clock(trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> Steps:
    yield  # how many keys a row reads is known once visibility is judged
    if "positions" not in trial.produced or not trial.wants("position", "measured"):
        return
    if trial.measured is not None:
        count = trial.measured.count
    elif _screens(trial) and trial.wants("visibility", "measured"):
        count = wanted(trial.scene).count  # sums told that it is what was read
    else:
        count = measure(attend, trial.scene, seen, complete=False).count
    # The harness rotates by what the builder said; attend gets garbage unless it reads it.
    turns = read_clock(attend, trial.scene, x.positions, seen, count - 1)
    shared = trial.case.layout.shared_prefix if len(trial.case.requests) > 1 else 0
    owns = [request.prefix_len > shared for request in trial.case.requests]
    depths = position.recover_clock(turns, trial.case.qo_indptr, owns)
    if all(depth is None for rows in depths for depth in rows):
        reason = "no row reads both its reference key and another"
        trial.not_checked("position", "measured", "attend", reason)
        return
    trial.recover("position", "measured", "depths", depths)
    failures = position.judge_measured(trial.case, depths)
    trial.judged("position", "measured", "attend", failures)


def _kernels(trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> Steps:
    yield
    judge_kernels(trial, attend, x)


_JUDGES = (
    (("random", "poison", "declared"), judge_outputs),
    (("tomography", "checksum", "chorus", "spike"), _visibility),
    (("clock",), _clock),
    (("kernels",), _kernels),
)
"""Probes, and what judges by them."""
