"""Launches on random data: against the oracle, and one against another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract, output
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import AttendCall, Launched, launch


def quiet_launch(
    trial: Trial, attend: AttendCall, x: VerifyInput, *, kept: bool = True
) -> Launched:
    """Random data, nothing loud beside them; the first such launch is kept for later comparisons."""
    if kept and trial.quiet is not None:
        return trial.quiet
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    done = launch_random(trial, showing(attend), x, seen, random_data.QUIET)
    if kept:
        trial.quiet = done
    return done


def launch_random(
    trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput, fill: random_data.Fill
) -> Launched:
    laid = random_data.contents(trial.scene, x, trial.prepared.data, fill)
    return launch(attend, trial.scene, seen, laid, "random")


def against_oracle(trial: Trial, done: Launched) -> tuple[list[Failure], output.Margin]:
    return compared(trial, done).judge()


def compared(trial: Trial, done: Launched) -> output.Compared:
    truth, able = trial.prepared.truth, trial.backend.capabilities
    limit = output.bounds(trial.scene, truth, trial.backend.numerics, able)
    return output.Compared(trial.scene, truth, limit, done.attended.out, done.attended.lse, able)


def same_launches(trial: Trial, a: Launched, b: Launched) -> bool:
    """Bitwise equal outputs and log-sum-exps on real rows."""
    return bool(same_rows(trial, a, b).all())


def same_rows(trial: Trial, a: Launched, b: Launched) -> Tensor:
    """(real rows,) bool."""
    rows = trial.scene.real_index
    same = contract.same_rows(a.attended.out[rows], b.attended.out[rows])
    if a.attended.lse is not None and b.attended.lse is not None:
        same &= contract.same_rows(a.attended.lse[rows], b.attended.lse[rows])
    return same


def showing(attend: AttendCall) -> AttendCall:
    """The call alone under `unwritten_shows`: what the harness does around it is faster without."""

    def shown(x: VerifyInput, *tensors: Tensor) -> Any:
        with unwritten_shows():
            return attend(x, *tensors)

    return shown


@contextmanager
def unwritten_shows() -> Iterator[None]:
    """Memory a kernel allocates and does not write holds NaN, so that it shows."""
    # The debug mode is the same switch as use_deterministic_algorithms, which imports a compiler.
    mode = torch.get_deterministic_debug_mode()
    fill: Any = torch.utils.deterministic  # its module gets this attribute by a class of its own
    was = fill.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    fill.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        fill.fill_uninitialized_memory = was
