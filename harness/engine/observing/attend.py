"""What launches of attention read, gave and wrote."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import (
    KEPT,
    PADDED,
    STRANGE,
    Attended,
    Group,
    KernelReads,
    Writes,
)
from treeproof.engine.checks.kernels import judge_kernels
from treeproof.engine.checks.random_launch import unwritten_shows
from treeproof.engine.checks.stages import attend_call
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.observing.contents import bits, in_part, rows_by_bits
from treeproof.properties.bound import natural
from treeproof.properties.contract import same_rows
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import Launched, launch
from treeproof.properties.reading import Measured, measure
from treeproof.properties.scene import Scene

_ALL_KEYS = 512
"""Prefix keys of a case up to which every one of them is read by itself."""


def observe_attend(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("attend"):
        return
    found["attend"] = _launched(trial, trial.instance, x)


def _launched(trial: Trial, instance: Any, x: VerifyInput) -> Attended:
    attend, scene = attend_call(trial, instance, x), trial.scene
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    with unwritten_shows():
        laid = random_data.contents(scene, x, trial.prepared.data, random_data.QUIET)
        done = launch(attend, scene, seen, laid, "random")
    judge_kernels(trial, attend, x)
    complete = sum(r.prefix_len for r in scene.case.requests) <= _ALL_KEYS
    measured = measure(attend, scene, seen, complete=complete)
    return _attended(scene, done, measured, trial.backend.capabilities)


def _attended(
    scene: Scene, done: Launched, measured: Measured, capabilities: Capabilities
) -> Attended:
    real, lse = scene.real_index, done.attended.lse
    return Attended(
        reads=tuple(
            KernelReads(reading.request, reading.slots, reading.low, reading.high)
            for reading in measured.readings
        ),
        unowned=frozenset(measured.unowned),
        out=done.attended.out[real].double().cpu(),
        lse=None if lse is None else natural(lse[real], capabilities).cpu(),
        writes=_writes(scene, done),
    )


def _writes(scene: Scene, done: Launched) -> Writes:
    """Slots whose K or V changed, and the rows that they now hold."""
    k_rows, v_rows = rows_by_bits(done.k_stored), rows_by_bits(done.v_stored)
    padding = scene.padding.tolist()
    k_cache, v_cache = done.k_cache.cpu(), done.v_cache.cpu()
    k_before, v_before = done.k_before.cpu(), done.v_before.cpu()
    k_stored, v_stored = done.k_stored.cpu(), done.v_stored.cpu()
    k_kept, v_kept = same_rows(k_cache, k_before), same_rows(v_cache, v_before)

    def holder(
        kept: Tensor,
        cache: Tensor,
        before: Tensor,
        stored: Tensor,
        rows: dict[bytes, int],
        slot: int,
    ) -> int:
        if bool(kept[slot]):
            return KEPT
        row = rows.get(bits(cache[slot]), STRANGE)
        if row == STRANGE:
            return in_part(cache[slot], before[slot], stored)
        return PADDED if padding[row] else row

    changed = (~(k_kept & v_kept)).nonzero().flatten().tolist()
    return {
        slot: (
            holder(k_kept, k_cache, k_before, k_stored, k_rows, slot),
            holder(v_kept, v_cache, v_before, v_stored, v_rows, slot),
        )
        for slot in changed
        if slot != scene.case.layout.pad_slot
    }
