"""What launches on random data show: outputs in the bound, writes, inputs, and no influence else."""

from __future__ import annotations

from collections.abc import Iterator

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.declared import judge_launched
from treeproof.engine.checks.poison import Loud, judge_poison
from treeproof.engine.checks.random_launch import compared, showing
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import tensors_of
from treeproof.properties import kv
from treeproof.properties.contract import Changed, Snapshot
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import AttendCall, Contents, Launched, launched
from treeproof.properties.violation import contract_failure


def judge_outputs(
    trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput
) -> Iterator[None]:
    """Outputs in the bound, writes in place, inputs left alone; then poison without influence.

    Launches up to the yield; what came of them is looked at after it.
    """
    before = Snapshot(tensors_of(seen))
    laid = random_data.contents(trial.scene, x, trial.prepared.data, random_data.QUIET)
    with trial.probing("random"):
        quiet, finite = launched(showing(attend), trial.scene, seen, laid, "random")
    asked = _Asked(trial, before, seen, quiet, laid) if trial.runs("random") else None
    loud = None
    if trial.runs("poison"):
        with trial.probing("poison"):
            loud = Loud(trial, attend, x, laid, quiet)
    yield
    with trial.probing("random"):
        finite.require()
        trial.quiet = quiet
        if asked is not None:
            asked.judge_mutation()
            asked.judge_bound()
    judge_launched(trial, x, quiet.attended.declared)
    if loud is not None:
        with trial.probing("poison"):
            judge_poison(trial, attend, x, seen, quiet, loud)
    if asked is not None and trial.wants("kv", "measured"):
        with trial.probing("random"):
            _judge_writes(trial, asked.written.judge())


class _Asked:
    """What is asked of the first launch."""

    def __init__(
        self,
        trial: Trial,
        before: Snapshot,
        seen: VerifyInput,
        done: Launched,
        laid: Contents,
    ) -> None:
        self._trial, rows, answers = trial, trial.scene.real_index, trial.scene.answers
        was = {"q": laid.q, "k": done.k_given[rows], "v": done.v_given[rows]}
        now = {"q": done.q, "k": done.k[rows], "v": done.v[rows]}
        self._changed = (
            Changed(before, Snapshot(tensors_of(seen)), answers),
            Changed(Snapshot(was), Snapshot(now), answers),
        )
        self._compared = compared(trial, done)
        self.written = kv.Written(trial.scene, done)

    def judge_mutation(self) -> None:
        changed = [name for inputs in self._changed for name in inputs.names()]
        if changed:
            message = f"attend changed its inputs {', '.join(changed)}"
            self._trial.note(contract_failure("mutates-input", "attend", message))

    def judge_bound(self) -> None:
        wrong, margin = self._compared.judge()
        if self._trial.wants("output", "measured"):
            self._trial.margin = margin
            self._trial.judged("output", "measured", "attend", wrong)


def _judge_writes(trial: Trial, failures: list[Failure]) -> None:
    if trial.backend.capabilities.stores_kv and not trial.borrows("store"):
        trial.judged("kv", "measured", "attend", failures)
    elif failures:
        # The reference wrote: to slots that the backend's own build named, or attend wrote as well.
        stage = "build" if "out_cache_loc" in trial.produced else "attend"
        trial.judged("kv", "measured", stage, failures)
    else:
        trial.not_checked("kv", "measured", "attend", "reference: written by store_kv")
