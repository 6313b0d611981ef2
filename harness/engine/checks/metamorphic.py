"""Related cases on the same backend, and the same launch again: what must not matter does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from treeproof.contract.failure import Failure
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.random_launch import quiet_launch, same_launches, unwritten_shows
from treeproof.engine.checks.related import first_taken, staged
from treeproof.engine.checks.scratch import known_keys, new_failures, scratch
from treeproof.engine.checks.stages import Built, attend_call, build, close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.related import Related, one_path
from treeproof.properties import output
from treeproof.properties.metamorphic import RELATIONS, REPEATS, Relation, judge
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import Launched, launch
from treeproof.properties.violation import Violation, contract_failure

_A_CASE = 1
"""Relations that a case has time for, in turn by its seed; nightly, and cases by hand, have all."""


def judge_metamorphic(trial: Trial, built: Built) -> None:
    """Skipped where numbers are wrong already: they would be wrong in every relation."""
    wrong = trial.broken or any(
        f.evidence == "measured" and f.identity in ("output", "visibility") for f in trial.failures
    )
    if not trial.runs("metamorphic") or not trial.has("attend") or wrong:
        return
    turns: list[Relation | None] = [*RELATIONS, None]  # None: the same again
    if not trial.options.complete and trial.case.seed:
        first = trial.case.seed % len(turns)
        turns = [*turns[first:], *turns[:first]]
    left = len(turns) if trial.options.complete or not trial.case.seed else _A_CASE
    with trial.probing("metamorphic"), trial.timed("probe"):
        try:
            quiet = quiet_launch(trial, attend_call(trial, trial.instance, built.x), built.x)
            while turns and left:
                relation = turns.pop(0)
                if relation is None:
                    _repeat(trial, built, quiet)
                    left -= 1
                else:
                    left -= _relate(trial, relation, built, quiet)
        except Violation as violation:
            trial.broke(violation)


def _relate(trial: Trial, relation: Relation, original: Built, quiet: Launched) -> bool:
    """Whether there is such a case. It runs on an object of its own."""
    related = first_taken(trial, relation.ways(trial.case))
    if related is None:
        return False
    instance = trial.call("plan", trial.backend.make)
    try:
        if relation.same_object:
            x = build(trial, instance, trial.scene, trial.prepared.candidates).x
            quiet_launch(trial, attend_call(trial, instance, x), x, kept=False)
        failures = _judge(trial, relation, related, instance, original, quiet)
    except Violation as violation:
        failure = violation.failure
        message = f"where {relation.when}: {failure.message}"
        raise Violation(msgspec.structs.replace(failure, message=message)) from violation
    finally:
        close(trial, instance)
    if failures and trial.wants("output", "measured"):
        trial.judged("output", "measured", "attend", failures)
    return True


def _judge(
    trial: Trial,
    relation: Relation,
    related: Related,
    instance: Any,
    original: Built,
    quiet: Launched,
) -> Sequence[Failure]:
    scene, made = staged(related.case, trial.options.device)
    built = build(trial, instance, scene, made)
    data = related.data(trial.prepared.data)
    if relation.ways is one_path:
        prepared = replace(trial.prepared, scene=scene, candidates=made, data=data, most_rounds=0)
        first = replace(trial.prepared, most_rounds=0)
        known = known_keys(trial, first, original)
        _declared(trial, relation, scratch(trial, prepared, instance, built), built, known)
    laid = random_data.contents(scene, built.x, data, random_data.QUIET)
    seen = garble(built.x, trial.backend.consumes, trial.case.seed)
    with unwritten_shows():
        done = launch(attend_call(trial, instance, built.x), scene, seen, laid, "metamorphic")
    able = trial.backend.capabilities
    limit = output.bounds(trial.scene, trial.prepared.truth, trial.backend.numerics, able)
    pairs = related.rows(trial.case)
    return judge(trial.scene, relation, pairs, quiet.attended, done.attended, limit, able)


def _declared(
    trial: Trial, relation: Relation, chain: Trial, built: Built, known: set[tuple[str, str]]
) -> None:
    """A chain's metadata to the letter: what a causal kernel would be given."""
    judge_declared(chain, built.x)
    for failure in new_failures(chain, known):
        message = f"where {relation.when}: {failure.message}"
        told = msgspec.structs.replace(failure, message=message, probe="metamorphic")
        trial.judged(failure.identity, failure.evidence, failure.stage, [told])


def _repeat(trial: Trial, built: Built, quiet: Launched) -> None:
    """The same launch again and again, and on a stream of its own where there are streams."""
    if not trial.backend.capabilities.deterministic:
        return
    attend = attend_call(trial, trial.instance, built.x)
    again = [quiet_launch(trial, attend, built.x, kept=False) for _ in range(REPEATS - 1)]
    changed = sum(not same_launches(trial, quiet, one) for one in again)
    if changed:
        message = f"{changed} of {len(again)} repetitions of a launch give other bits"
        trial.note(contract_failure("not-repeatable", "attend", message))
    elif trial.scene.device.type == "cuda":
        torch.cuda.synchronize(trial.scene.device)
        own = torch.cuda.Stream(trial.scene.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(own):
            aside = quiet_launch(trial, attend, built.x, kept=False)
        torch.cuda.synchronize(trial.scene.device)
        if not same_launches(trial, quiet, aside):
            message = "on another stream than the default one a launch gives other bits"
            trial.note(contract_failure("changes-with-stream", "attend", message))
