"""Whether attend launches the kernels that its backend names, and not quietly something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.contract.kernels import absent, present
from treeproof.engine.checks.random_launch import quiet_launch
from treeproof.engine.checks.trial import Trial
from treeproof.properties.probes.kernels import Ran, interpreted, profiled
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.violation import contract_failure

Watch = Callable[[Callable[[], Any]], tuple[Any, Ran]]

_ONE_IN = 2
"""Cases that have time for it: one launch where Triton interprets, another where a profiler looks."""

_SAID = 8
"""Of what ran instead, so many names: those that took longest."""


def judge_kernels(trial: Trial, attend: AttendCall, x: VerifyInput) -> None:
    """Look at one plain launch. Where nothing can be seen the names are not checked, and not wrong."""
    named = trial.backend.kernels
    due = trial.options.due(trial.case.seed, 1, _ONE_IN)
    if not named or not due or not trial.wants("contract", "measured"):
        return
    ran = _ran(trial, attend, x)
    trial.kernels = present(named, ran.kernels)
    missing = absent(named, ran.kernels)
    if missing and ran.unseen:
        reason = f"whether it launches {', '.join(missing)} was not seen: {ran.unseen}"
        trial.not_checked("contract", "measured", "attend", reason)
    elif missing:
        instead = ", ".join(kernel.shown for kernel in ran.kernels[:_SAID])
        more = f" and {len(ran.kernels) - _SAID} more" if ran.kernels[_SAID:] else ""
        message = f"attend does not launch {', '.join(missing)}; it ran {instead}{more}"
        trial.note(contract_failure("other-kernel", "attend", message))


def _ran(trial: Trial, attend: AttendCall, x: VerifyInput) -> Ran:
    ran = _watched(trial, attend, x, interpreted)
    # The first recording of a process may lose what ran while the profiler was being set up.
    for _ in range(1 if trial.scene.device.type == "cpu" else 2):
        if absent(trial.backend.kernels, ran.kernels):
            ran = _watched(trial, attend, x, lambda call: profiled(call, trial.scene.device))
    return ran


def _watched(trial: Trial, attend: AttendCall, x: VerifyInput, watch: Watch) -> Ran:
    """One launch; what the harness does for it is not watched."""
    found: list[Ran] = []

    def watched(seen: VerifyInput, *tensors: Tensor) -> Any:
        result, ran = watch(lambda: attend(seen, *tensors))
        found.append(ran)
        return result

    quiet_launch(trial, watched, x, kept=False)
    return found[0]
