"""What an object remembers: the case once more, after other batches on the same object.

Before it come a larger batch (more requests, more rows, longer prefixes) and one of the same sizes
with other trees. What the object then builds, attends, accepts and commits must be what a fresh one
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.contract.inputs import Accepted, Candidates
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.random_launch import against_oracle, quiet_launch, same_launches
from treeproof.engine.checks.related import first_taken, staged
from treeproof.engine.checks.rounds import judge_rounds
from treeproof.engine.checks.scratch import known_keys, new_failures, scratch
from treeproof.engine.checks.stages import Built, attend_call, build, close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.related import larger, twin
from treeproof.properties.kv import judge_writes
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import Contents, launch
from treeproof.properties.probes.storage import Caches
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure

_AFTER = "after other batches on the same object, "

_ONE_IN = 3
"""Cases that have time for it: three rounds cost as much as half of a check."""

_KINDS: dict[tuple[Identity, Evidence], str] = {
    ("candidate", "declared"): "stale-token",
    ("position", "declared"): "stale-position",
    ("visibility", "declared"): "stale-table",
    ("traversal", "declared"): "stale-link",
    ("kv", "declared"): "stale-slot",
    ("candidate", "measured"): "stale-walk",
    ("traversal", "measured"): "stale-walk",
    ("kv", "measured"): "stale-commit",
}
"""Whatever a table says wrongly, it is stale; the identity says which table."""


def judge_stale(trial: Trial, fresh: Built) -> None:
    """Everything that differs from what `trial` found on a fresh object. Breaks nothing twice."""
    due = trial.options.due(trial.case.seed, 0, _ONE_IN)
    if not trial.runs("stale") or not due or trial.broken:
        return
    with trial.probing("stale"), trial.timed("probe"):
        try:
            instance = trial.call("plan", trial.backend.make)
            for case in _earlier(trial):
                one_round(trial, instance, *staged(case, trial.options.device))
            _again(trial, fresh, instance)
        except Violation as violation:
            trial.broke(_stale(violation))
        else:
            close(trial, instance)


def _earlier(trial: Trial) -> Iterator[VerifyCase]:
    for ways in (larger, twin):
        case = first_taken(trial, ways(trial.case))
        if case is not None:
            yield case


def _stale(violation: Violation) -> Violation:
    failure = violation.failure
    return Violation(
        msgspec.structs.replace(
            failure, kind=f"stale-{failure.kind}", message=_AFTER + failure.message
        )
    )


def one_round(trial: Trial, instance: Any, scene: Scene, made: Candidates) -> None:
    """Every stage once, on contents of no interest; only the roots are accepted."""
    x = build(trial, instance, scene, made).x
    if trial.has("attend"):
        seen = garble(x, trial.backend.consumes, scene.case.seed)
        launch(attend_call(trial, instance, x), scene, seen, _contents(scene), "earlier")
    roots = torch.tensor(scene.case.qo_indptr[:-1], device=scene.device)
    padded = roots.new_full((len(roots), x.spec_steps), -1)
    accepted = Accepted(
        accept_index=torch.cat((roots[:, None], padded), 1),
        accept_len=torch.ones_like(roots),
        tokens=torch.cat((torch.ones_like(roots)[:, None], padded), 1),
    )
    if trial.has("accept"):
        trial.call("accept", instance.accept, x, torch.zeros_like(scene.row_slot))
    if trial.has("commit"):
        laid = _contents(scene)
        caches = Caches.laid(scene.case.layout, laid.k, laid.v, laid.stale_k, laid.stale_v)
        trial.call("commit", instance.commit, x, accepted, caches.k, caches.v)


def _contents(scene: Scene) -> Contents:
    shape, slots = scene.case.shape, scene.case.layout.num_slots
    k, v = (
        sign_codes(slots, shape.num_kv_heads, width, 5, scene.device).to(scene.dtype)
        for width in (shape.head_dim, shape.v_head_dim)
    )
    q = torch.ones(
        scene.num_rows, shape.num_q_heads, shape.head_dim, dtype=scene.dtype, device=scene.device
    )
    return Contents(q, k, v, k[0], v[0])


def _again(trial: Trial, fresh: Built, instance: Any) -> None:
    """The case itself: new kinds of failures, then outputs that are not those of a fresh object."""
    prepared = trial.prepared
    first_round = replace(prepared, most_rounds=1)  # fmt: skip
    known = known_keys(trial, first_round, fresh)
    built = build(trial, instance, trial.scene, prepared.candidates)
    after = scratch(trial, first_round, instance, built)
    judge_declared(after, built.x)
    _unbroken(after)
    new = _take_over(trial, after, known)  # before attend can break on what was built
    different = _launch_again(trial, after, fresh, built) if trial.has("attend") else None
    judge_rounds(after, built.x)
    _unbroken(after)
    new |= _take_over(trial, after, known)
    if different is not None and not new:
        trial.note(different)


def _unbroken(after: Trial) -> None:
    if after.broken:
        raise Violation(after.failures[-1])


def _take_over(trial: Trial, after: Trial, known: set[tuple[str, str]]) -> bool:
    """Move the failures that are not known yet over to `trial`; whether there were any."""
    new = new_failures(after, known)
    for failure in new:
        stale = msgspec.structs.replace(
            failure, kind=_kind(failure), message=_AFTER + failure.message, probe="stale"
        )
        trial.judged(failure.identity, failure.evidence, failure.stage, [stale])
    return bool(new)


def _kind(failure: Failure) -> str:
    if (failure.identity, failure.stage) == ("kv", "attend"):
        return "stale-write"
    return _KINDS.get((failure.identity, failure.evidence), f"stale-{failure.kind}")


def _launch_again(trial: Trial, after: Trial, fresh: Built, built: Built) -> Failure | None:
    """Writes go to `after`; outputs that differ from those of a fresh object are returned."""
    first = quiet_launch(trial, attend_call(trial, trial.instance, fresh.x), fresh.x)
    again = quiet_launch(trial, attend_call(trial, after.instance, built.x), built.x, kept=False)
    own_writes = trial.backend.capabilities.stores_kv and trial.wants("kv", "measured")
    if own_writes and not judge_writes(trial.scene, first):
        after.note(*judge_writes(trial.scene, again))
    if trial.backend.capabilities.deterministic:
        right = same_launches(trial, first, again)
    else:
        right = bool(against_oracle(trial, first)[0]) or not against_oracle(trial, again)[0]
    if right:
        return None
    text = "outputs differ from those of a fresh object"
    return contract_failure("remembers-earlier-call", "attend", _AFTER + text)
