"""Every stage twice, with two fills of what lies past the end of its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.copies import copied, tensors_in
from treeproof.engine.checks.random_launch import against_oracle, quiet_launch, same_launches
from treeproof.engine.checks.stages import Built, attend_call
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import AttendCall, Launched
from treeproof.properties.probes.storage import Caches
from treeproof.properties.probes.tails import (
    Guarded,
    free_candidate_cells,
    free_cells,
    guarded,
)
from treeproof.properties.violation import Violation, contract_failure

_ONE_IN = 3
"""Cases that have time for it: another build, two launches and two rounds."""


def judge_tails(trial: Trial, built: Built) -> None:
    """What is past the end of a table changes nothing, and nothing is written there."""
    due = trial.options.due(trial.case.seed, 1, _ONE_IN)
    # Which cells mean something is read from the batch, which must be right for that.
    lost = trial.broken or any(f.kind == "wrong-batch" for f in trial.failures)
    if not trial.runs("tails") or not due or lost:
        return
    stages = (("build", _build), ("attend", _attend), ("accept", _accept), ("commit", _commit))
    with trial.probing("tails"), trial.timed("probe"):
        for stage, judge in stages:
            if trial.has(stage):
                try:
                    judge(trial, built)
                except Violation as violation:
                    trial.broke(violation)


def _written(trial: Trial, stage: str, *given: Guarded[Any]) -> None:
    names = [name for one in given for name in one.overwritten()]
    if names:
        message = f"{stage} writes before the start or past the end of {', '.join(names)}"
        trial.note(contract_failure("writes-past-the-end", stage, message))


def _depends(trial: Trial, stage: str, what: str) -> None:
    message = (
        f"{what} of {stage} changes with what lies past the end of its metadata (cells around a "
        "tensor, columns past a request's length, cells of no request, slack)"
    )
    trial.note(contract_failure("depends-on-tail", stage, message))


def _build(trial: Trial, built: Built) -> None:
    made = trial.prepared.candidates
    free = free_candidate_cells(trial.scene, made)
    results = []
    for loud in (False, True):
        given = guarded(made, loud, free, trial.case.seed)
        result = contract.valid_built(
            trial.call("build", trial.instance.build, given.value), trial.scene
        )
        _written(trial, "build", given)
        # What is built may be a view of what was given.
        x = copied(replace(built.x, **result))
        results.append({name: _meant(trial, x, name) for name in result if name in tensors_in(x)})
    changed = [name for name, table in results[0].items() if not _same(table, results[1].get(name))]
    if changed and not trial.borrows("build"):
        _depends(trial, "build", ", ".join(changed))


def _meant(trial: Trial, x: VerifyInput, name: str) -> Tensor:
    """A field without its cells that mean nothing."""
    table: Tensor = getattr(x, name)
    free = free_cells(trial.scene, x).get(name)
    if name == "custom_mask" and not table.dtype.is_floating_point and table.element_size() > 1:
        table = table.long()  # bits past the columns are compared too: a builder writes whole items
    return table if free is None else table[~free]


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and contract.same_bits(a, b)


def _attend(trial: Trial, built: Built) -> None:
    plain = attend_call(trial, trial.instance, built.x)
    first, second = (
        quiet_launch(trial, _guarding(trial, plain, built.x, loud), built.x, kept=False)
        for loud in (False, True)
    )
    if not _alike(trial, first, second):
        _depends(trial, "attend", "the output")


def _guarding(trial: Trial, attend: AttendCall, x: VerifyInput, loud: bool) -> AttendCall:
    free = free_cells(trial.scene, x)

    def call(seen: VerifyInput, *tensors: Tensor) -> Any:
        given = guarded(seen, loud, free, trial.case.seed)
        if trial.case.layout.storage != "NHD":  # its memory is not the tensor's alone to guard
            result = attend(given.value, *tensors)
            _written(trial, "attend", given)
            return result
        caches = [guarded(cache, loud, {}, trial.case.seed) for cache in tensors[3:]]
        result = attend(given.value, *tensors[:3], *(cache.value for cache in caches))
        for cache, inside in zip(tensors[3:], caches, strict=True):
            cache.copy_(inside.value)
        _written(trial, "attend", given, *map(_as_cache, caches, ("k_cache", "v_cache")))
        return result

    return call


def _as_cache(cache: Guarded[Tensor], name: str) -> Guarded[Tensor]:
    return replace(cache, guards={name: cache.guards["tensor"]})


def _alike(trial: Trial, a: Launched, b: Launched) -> bool:
    if trial.backend.capabilities.deterministic:
        return same_launches(trial, a, b)
    return bool(against_oracle(trial, a)[0]) or not against_oracle(trial, b)[0]


def _accept(trial: Trial, built: Built) -> None:
    seen = garble(built.x, trial.backend.consumes, trial.case.seed)
    free = free_cells(trial.scene, built.x)
    target = trial.scene.row_slot.new_tensor(trial.prepared.rounds[0].tokens)
    results = []
    for loud in (False, True):
        x, tokens = (
            guarded(seen, loud, free, trial.case.seed),
            guarded(target, loud, {}, trial.case.seed),
        )
        results.append(trial.call("accept", trial.instance.accept, x.value, tokens.value))
        _written(trial, "accept", x, tokens)
    if not _equal(*results):
        _depends(trial, "accept", "the result")


def _commit(trial: Trial, built: Built) -> None:
    seen = garble(built.x, trial.backend.consumes, trial.case.seed)
    free = free_cells(trial.scene, built.x)
    results: list[Any] = []
    moved: list[Mapping[str, Tensor]] = []
    for loud in (False, True):
        x = guarded(seen, loud, free, trial.case.seed)
        accepted = guarded(trial.prepared.accepted[0], loud, {}, trial.case.seed)
        k, v = _caches(trial)
        caches = Caches.laid(trial.case.layout, k, v, k[0], v[0])
        guards: list[Guarded[Tensor]] = []
        if trial.case.layout.storage == "NHD":
            guards = [guarded(c, loud, {}, trial.case.seed) for c in (caches.k, caches.v)]
            caches = replace(caches, k=guards[0].value, v=guards[1].value)
        results.append(
            trial.call("commit", trial.instance.commit, x.value, accepted.value, caches.k, caches.v)
        )
        named = map(_as_cache, guards, ("k_cache", "v_cache"))
        _written(trial, "commit", x, accepted, *named)
        moved.append(dict(zip("kv", caches.by_slot(), strict=True)))
    free_to_write = ~trial.prepared.moves[0].judged
    same = all(
        bool((contract.same_rows(moved[0][n], moved[1][n]) | free_to_write).all()) for n in "kv"
    )
    if not same or not _equal(*results):
        _depends(trial, "commit", "the result")


def _caches(trial: Trial) -> tuple[Tensor, Tensor]:
    shape, scene = trial.case.shape, trial.scene
    k, v = (
        sign_codes(scene.case.layout.num_slots, shape.num_kv_heads, width, 6, scene.device)
        for width in (shape.head_dim, shape.v_head_dim)
    )
    return k.to(scene.stored_dtype), v.to(scene.stored_dtype)


def _equal(a: Any, b: Any) -> bool:
    return all(
        contract.same_bits(getattr(a, f.name), getattr(b, f.name))
        for f in fields(a)
        if isinstance(getattr(a, f.name), Tensor)
    )
