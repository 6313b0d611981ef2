"""One case on one backend: run its stages, gather evidence, judge each identity."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import ATTENTION, COLUMNS, PROBES, Cell, Evidence, Identity, Status
from treeproof.contract.registry import Backend, BackendUnavailable
from treeproof.engine.checks.captured import judge_captured
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.device_fault import is_device_fault, is_out_of_memory
from treeproof.engine.checks.drafts import judge_drafts
from treeproof.engine.checks.extends import judge_extends
from treeproof.engine.checks.forward import judge_forward
from treeproof.engine.checks.guard import judge_guard
from treeproof.engine.checks.launches import judge_launches, show_what_was_read
from treeproof.engine.checks.laws import judge_laws
from treeproof.engine.checks.malformed import judge_malformed_builds
from treeproof.engine.checks.memory import judge_memory
from treeproof.engine.checks.merges import judge_merges
from treeproof.engine.checks.metamorphic import judge_metamorphic
from treeproof.engine.checks.model import judge_model
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.prepared import prepare
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.requests import judge_requests
from treeproof.engine.checks.rounds import judge_rounds
from treeproof.engine.checks.samples import judge_samples
from treeproof.engine.checks.selects import judge_selects
from treeproof.engine.checks.spoilt import judge_spoilt
from treeproof.engine.checks.stages import build, close
from treeproof.engine.checks.stale import judge_stale
from treeproof.engine.checks.tails import judge_tails
from treeproof.engine.checks.traces import judge_traces
from treeproof.engine.checks.trial import Trial
from treeproof.engine.checks.unable import DeviceLimit, OutOfMemory
from treeproof.engine.serving.check import serve
from treeproof.engine.serving.ends import Refused
from treeproof.generate.halves import halves
from treeproof.properties.batch import judge_batch
from treeproof.properties.exception_text import words_of
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, raised

__all__ = ["CheckOptions", "check_case"]


def check_case(case: VerifyCase, backend: Backend, options: CheckOptions) -> Checked:
    """Verdicts of one backend on one case. Never raises for what the backend does wrong."""
    refusal = backend.capabilities.refusal(case, options.device)
    if refusal is not None:
        return _no_verdict(case, backend, options, "unsupported", refusal)
    if options.in_flight is not None:
        options.in_flight("oracle")
    try:
        if case.script:
            return _check_script(case, backend, options)
        return _check_step(case, backend, options)
    except (OutOfMemory, MemoryError, RuntimeError) as error:
        if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
            raise
        return _too_large(case, backend, options, words_of(error))


def _too_large(case: VerifyCase, backend: Backend, options: CheckOptions, why: str) -> Checked:
    """No verdict: its launch does not fit into memory. What is kept for further cases is let go of."""
    for kept in (prepare, staged):
        kept.cache_clear()
    if options.device != "cpu":
        torch.cuda.empty_cache()
    parts = len(halves(case))
    reason = f"out of memory on {len(case.requests)} requests"
    status: Status = "not-checked" if parts else "unavailable"
    reason += "; halves are checked instead" if parts else f": {why.splitlines()[0]}"
    return msgspec.structs.replace(
        _no_verdict(case, backend, options, status, reason), out_of_memory=True
    )


def _check_step(case: VerifyCase, backend: Backend, options: CheckOptions) -> Checked:
    made, start = prepare.cache_info().misses, time.perf_counter()
    trial = Trial(backend, options, prepare(case, options.device, options.leaves))
    if prepare.cache_info().misses > made:  # backends share it: the first of them pays
        oracle = trial.prepared.seconds
        trial.seconds = {"oracle": oracle, "generate": time.perf_counter() - start - oracle}
    unable = _unable(trial, lambda: _run(trial))
    if unable is not None:
        return _no_verdict(case, backend, options, *unable)
    close(trial, trial.instance)
    return _result(trial)


def _result(trial: Trial) -> Checked:
    _fill_gaps(trial)
    try:
        return trial.result()
    except RuntimeError as error:
        if not is_device_fault(error):
            raise
        trial.recovered.clear()  # what was recovered lies on a device that answers no more
        return trial.result()


def _check_script(case: VerifyCase, backend: Backend, options: CheckOptions) -> Checked:
    trial = Trial(backend, options, Scene.of(case, options.device))
    try:
        unable = _unable(trial, lambda: serve(case, trial))
    except Refused as refused:
        unable = "unsupported", str(refused)
    if unable is not None:
        return _no_verdict(case, backend, options, *unable)
    return _result(trial)


def _unable(trial: Trial, work: Callable[[], object]) -> tuple[Status, str] | None:
    """Do the work; why there is no verdict at all, where the backend found that it cannot run. Whatever
    else comes of backend and device is a failure of the trial's. The device has come to rest then: what its
    last launch does wrong must not show in the next check."""
    try:
        work()
        if trial.scene.device.type == "cuda":
            torch.cuda.synchronize(trial.scene.device)
    except OutOfMemory:
        raise
    except BackendUnavailable as error:
        if not trial.failures:
            return "unsupported" if isinstance(error, DeviceLimit) else "unavailable", words_of(
                error
            )
        trial.broke(raised(trial.stage, error))
    except RuntimeError as error:
        if not is_device_fault(error) or is_out_of_memory(error):
            raise
        # A kernel's fault comes to light at the next look at the device, which may be ours.
        trial.broke(raised(trial.stage, error))
    return None


def _no_verdict(
    case: VerifyCase, backend: Backend, options: CheckOptions, status: Status, reason: str
) -> Checked:
    cells = tuple(
        Cell(identity=identity, evidence="measured", status=status, stage="", reason=reason)
        for identity in COLUMNS
        if identity in options.identities
    )
    return Checked(case=case.id, backend=backend.name, cells=cells)


def _run(trial: Trial) -> None:
    """The order of things: what is built and declared, what launches show, what a round does."""
    try:
        trial.instance = trial.call("plan", trial.backend.make)
        made = trial.prepared.candidates
        built = build(trial, trial.instance, trial.scene, made)
        trial.produced = dict(built.produced)
        trial.note(*judge_batch(trial.scene, made, built.produced))
    except Violation as violation:
        trial.broke(violation)
    else:
        judge_declared(trial, built.x)
        judge_launches(trial, built.x)
        judge_rounds(trial, built.x)
        judge_samples(trial, built.x)
        judge_laws(trial)
        judge_requests(trial, built.x)
        judge_extends(trial, built.x)
        judge_merges(trial)
        judge_selects(trial)
        judge_traces(trial)
        judge_drafts(trial)
        judge_forward(trial, built)
        judge_model(trial)
        judge_tails(trial, built)
        judge_metamorphic(trial, built)
        judge_stale(trial, built)
        judge_captured(trial)
        judge_malformed_builds(trial)
        judge_spoilt(trial)
        judge_guard(trial, check_case)
        judge_memory(trial)
        show_what_was_read(trial, built.x)


def _fill_gaps(trial: Trial) -> None:
    """Judge the contract, and say of every wanted verdict that is still missing why it is."""
    have = {(cell.identity, cell.evidence) for cell in trial.cells}
    # Rounds that came to their end have shown what rounds can show.
    through = trial.case.script and trial.runs("rounds") and not trial.broken
    evidences: tuple[Evidence, ...] = ("declared", "measured")
    for identity in () if through else COLUMNS:
        for evidence in evidences:
            only_measured = identity in ("output", "contract") and evidence == "declared"
            if identity != "contract" and not only_measured and (identity, evidence) not in have:
                reason = trial.broken or _why_missing(trial, identity, evidence)
                trial.not_checked(identity, evidence, "", reason)
    if not trial.called and not trial.failures:
        trial.not_checked("contract", "measured", "", "no stage of its own was run")
    elif trial.wants("contract", "measured"):
        failed = any(failure.identity == "contract" for failure in trial.failures)
        trial.cells.append(
            Cell(
                identity="contract",
                evidence="measured",
                status="fail" if failed else "pass",
                stage="all",
            )
        )


def _why_missing(trial: Trial, identity: Identity, evidence: Evidence) -> str:
    off = sorted(set(PROBES) - trial.options.probes)
    if evidence == "declared":
        stage = "build"
    else:
        stage = "accept" if identity in ("candidate", "traversal") else "attend"
    if not trial.has(stage):
        return f"reference: no {stage} stage of its own"
    if trial.borrows(stage):
        return f"reference: its {stage} stage calls ours"
    if trial.options.probes == ATTENTION:
        return "bulk: launches of attend alone are looked at"
    if off:
        return f"probes switched off: {', '.join(off)}"
    return f"reference: its {stage} stage gives no such evidence"
