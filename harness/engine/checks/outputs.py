"""What launches on random data show: outputs in the bound, writes, inputs, and no influence else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.declared import judge_launched
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble, tensors_of
from treeproof.properties import contract, kv, output
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import AttendCall, Contents, Launched, launch
from treeproof.properties.violation import Violation, contract_failure


def quiet_launch(
    trial: Trial, attend: AttendCall, x: VerifyInput, *, kept: bool = True
) -> Launched:
    """Random data, nothing loud beside them; the first such launch is kept for later comparisons."""
    if kept and trial.quiet is not None:
        return trial.quiet
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    with unwritten_shows():
        done = _launch_random(trial, attend, x, seen, random_data.QUIET)
    if kept:
        trial.quiet = done
    return done


def judge_outputs(trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> None:
    """Outputs in the bound, writes in place, inputs left alone; then poison without influence."""
    with trial.probing("random"):
        with unwritten_shows():
            laid = random_data.contents(trial.scene, x, trial.prepared.data, random_data.QUIET)
            quiet = trial.quiet = launch(attend, trial.scene, seen, laid, "random")
        if trial.runs("random"):
            _judge_mutation(trial, x, seen, quiet, laid)
            _judge_bound(trial, quiet)
    judge_launched(trial, x, quiet.attended.declared)
    if trial.runs("poison"):
        with trial.probing("poison"):
            _judge_poison(trial, attend, x, seen, quiet)
    if trial.runs("random") and trial.wants("kv", "measured"):
        with trial.probing("random"):
            _judge_writes(trial, quiet)


def _judge_bound(trial: Trial, quiet: Launched) -> None:
    wrong, margin = against_oracle(trial, quiet)
    if trial.wants("output", "measured"):
        trial.margin = margin
        trial.judged("output", "measured", "attend", wrong)


def against_oracle(trial: Trial, done: Launched) -> tuple[list[Failure], output.Margin]:
    truth, able = trial.prepared.truth, trial.backend.capabilities
    limit = output.bounds(trial.scene, truth, trial.backend.numerics, able)
    return output.judge(trial.scene, truth, limit, done.attended.out, done.attended.lse, able)


def _judge_poison(
    trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput, quiet: Launched
) -> None:
    with unwritten_shows():
        loud = _launch_loud(trial, attend, x)
    if loud is None:
        return
    if trial.backend.capabilities.deterministic:
        _judge_influence(trial, attend, x, seen, quiet, loud)
    elif trial.wants("kv", "measured") and not against_oracle(trial, quiet)[0]:
        # Bits may differ from launch to launch; the bound holds whatever lies beside the keys.
        moved, _ = against_oracle(trial, loud)
        if moved:
            trial.judged("kv", "measured", "attend", [_influences(moved[0].request, moved[0].row)])


def _launch_random(
    trial: Trial, attend: AttendCall, x: VerifyInput, seen: VerifyInput, fill: random_data.Fill
) -> Launched:
    laid = random_data.contents(trial.scene, x, trial.prepared.data, fill)
    return launch(attend, trial.scene, seen, laid, "random")


def _launch_loud(trial: Trial, attend: AttendCall, x: VerifyInput) -> Launched | None:
    """The same data over loud poison and other garbage; None where NaN came through."""
    other = garble(x, trial.backend.consumes, trial.case.seed + 1)
    try:
        return _launch_random(trial, attend, x, other, random_data.LOUD)
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


def _judge_writes(trial: Trial, done: Launched) -> None:
    failures = kv.judge_writes(trial.scene, done)
    if trial.backend.capabilities.stores_kv and not trial.borrows("store"):
        trial.judged("kv", "measured", "attend", failures)
    elif failures:
        # The reference wrote: to slots that the backend's own build named, or attend wrote as well.
        stage = "build" if "out_cache_loc" in trial.produced else "attend"
        trial.judged("kv", "measured", stage, failures)
    else:
        trial.not_checked("kv", "measured", "attend", "reference: written by store_kv")


def _judge_mutation(
    trial: Trial, x: VerifyInput, seen: VerifyInput, done: Launched, laid: Contents
) -> None:
    before = tensors_of(garble(x, trial.backend.consumes, trial.case.seed))
    changed = contract.mutated(before, tensors_of(seen))
    if not contract.same_bits(laid.q, done.q):
        changed.append("q")
    rows = trial.scene.real_index
    for name, now, was in (("k", done.k, done.k_given), ("v", done.v, done.v_given)):
        if not contract.same_bits(now[rows], was[rows]):
            changed.append(name)
    if changed:
        message = f"attend changed its inputs {', '.join(changed)}"
        trial.note(contract_failure("mutates-input", "attend", message))


def _judge_influence(
    trial: Trial,
    attend: AttendCall,
    x: VerifyInput,
    seen: VerifyInput,
    quiet: Launched,
    loud: Launched,
) -> None:
    """Outputs must not depend on memory nobody holds, nor on fields not declared as read."""
    if same_launches(trial, quiet, loud):
        return
    with unwritten_shows():
        # Twice: a kernel that alternates would otherwise look like one that peeks.
        again = [_launch_random(trial, attend, x, seen, random_data.QUIET) for _ in range(2)]
        memory = _launch_random(trial, attend, x, seen, random_data.LOUD)
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
            done = _launch_random(trial, attend, x, mixed, random_data.QUIET)
            if not same_launches(trial, quiet, done):
                named.append(name)
    return named


def _influence(trial: Trial, quiet: Launched, memory: Launched) -> Failure:
    first = int((~_same_rows(trial, quiet, memory)).nonzero()[0, 0])
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


def same_launches(trial: Trial, a: Launched, b: Launched) -> bool:
    """Bitwise equal outputs and log-sum-exps on real rows."""
    return bool(_same_rows(trial, a, b).all())


def _same_rows(trial: Trial, a: Launched, b: Launched) -> Tensor:
    """(real rows,) bool."""
    rows = trial.scene.real_index
    same = contract.same_rows(a.attended.out[rows], b.attended.out[rows])
    if a.attended.lse is not None and b.attended.lse is not None:
        same &= contract.same_rows(a.attended.lse[rows], b.attended.lse[rows])
    return same


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
