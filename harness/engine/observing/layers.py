"""What each layer of a small model was handed, what it gave, and whose rows its cache held in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.evidence import Group, LayerSeen, LayersSeen
from treeproof.engine.checks.model import Kind, forward, layers_of, planned
from treeproof.engine.checks.prepared import prepare
from treeproof.engine.checks.random_launch import unwritten_shows
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.observing.build import observe_build
from treeproof.engine.observing.contents import bits
from treeproof.properties.contract import same_rows
from treeproof.properties.layers import LayerRun

_TIMES = 2
"""Two layers of a kind do not tell the first from the one before."""


def observe_layers(trial: Trial, found: dict[Group, Any]) -> None:
    """Each kind of layers on an object and a right build of its own."""
    layered = layers_of(trial, _TIMES)
    if not trial.has("attend") or layered is None:
        return
    model, of_layer = layered
    kinds = {case: _kind(trial, case) for case in dict.fromkeys(of_layer)}
    try:
        with unwritten_shows():
            runs, _ = forward(trial, model, [kinds[case] for case in of_layer])
    finally:
        for kind in kinds.values():
            close(trial, kind.instance)
    plans = [*kinds]
    layers = tuple(_layer(plans.index(case), run) for case, run in zip(of_layer, runs, strict=True))
    found["layers"] = LayersSeen(layers, _held(runs))


def _kind(trial: Trial, case: VerifyCase) -> Kind:
    prepared = prepare(case, trial.options.device, trial.options.leaves)
    one = replace(trial, subject=prepared, instance=trial.call("plan", trial.backend.make))
    return planned(trial, prepared.scene, one.instance, observe_build(one, {}))


def _layer(plan: int, run: LayerRun) -> LayerSeen:
    scene, laid = run.scene, run.contents
    q, *cache = (t.double().cpu() for t in (laid.q, laid.k, laid.v, laid.stale_k, laid.stale_v))
    out = run.done.attended.out[scene.real_index].double().cpu()
    return LayerSeen(plan, scene.case.shape, q, (cache[0], cache[1]), (cache[2], cache[3]), out)


def _held(runs: Sequence[LayerRun]) -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
    """As `LayersSeen` has it, out of the caches as they are once all layers have run."""
    of_k, of_v = (
        _whose(runs, stored)
        for stored in ([run.done.k_stored for run in runs], [run.done.v_stored for run in runs])
    )
    found = {}
    for run in runs:
        done, pad = run.done, run.scene.case.layout.pad_slot
        kept = same_rows(done.k_cache, done.k_before) & same_rows(done.v_cache, done.v_before)
        for slot in (~kept).nonzero().flatten().tolist():
            if slot != pad:
                k, v = bits(done.k_cache[slot].cpu()), bits(done.v_cache[slot].cpu())
                found[run.layer, slot] = frozenset(of_k.get(k, ())) & frozenset(of_v.get(v, ()))
    return found


def _whose(
    runs: Sequence[LayerRun], stored: Sequence[Tensor]
) -> dict[bytes, list[tuple[int, int]]]:
    """Layers and rows by their bits; values of equal tokens are equal in the first layer."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for run, rows in zip(runs, stored, strict=True):
        for flat, row in enumerate(rows.cpu()):
            found.setdefault(bits(row), []).append((run.layer, flat))
    return found
