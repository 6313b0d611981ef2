"""What is kept of a round: the accepted path moves to the front in every cache, and the drafter runs on it."""

from __future__ import annotations

from dataclasses import replace as replaced
from functools import partial

from msgspec.structs import replace

from treeproof.backends import reference
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.stage import ask, judged, tell
from treeproof.engine.serving.step import Step
from treeproof.properties import contract, extending, kv
from treeproof.properties.extending import Found
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction


def commit(
    trial: Trial,
    step: Step,
    seen: VerifyInput,
    accepted: Accepted,
    prediction: Prediction,
    memory: Memory,
) -> Committed:
    """Every pair of caches that lives by the slots is moved alike, each by a call of its own."""
    move = kv.moves(step.scene, [prediction])[0]
    first: Committed | None = None
    for pool, (k_cache, v_cache) in enumerate(memory.pairs()):
        before = k_cache.clone(), v_cache.clone()
        if trial.has("commit"):
            result = ask(trial, "commit", seen, accepted, first=step.first, rest=(k_cache, v_cache))
        else:
            trial.lends("commit")
            result = reference.commit(step.ours, accepted, k_cache, v_cache)
        done = contract.valid_committed(result, step.scene)
        failures = kv.judge_commit(step.scene, move, done, before, (k_cache, v_cache))
        where = "" if not pool else f"layer {pool}" if pool < len(memory.k) else kv.COMPANIONS
        stop_at(trial, [kv.in_pool(failure, where) for failure in failures])
        first = first or done
    assert first is not None
    return first


def extend(
    trial: Trial, step: Step, seen: VerifyInput, accepted: Accepted, prediction: Prediction
) -> None:
    """What the drafter is run on over the path; whose keys are then written by what was judged."""
    hidden = extending.hidden_states(step.scene)
    result = ask(trial, "extend", seen, accepted, hidden, first=step.first)
    done = extending.valid_extended(result, step.scene, step.made.spec_steps, hidden)
    found = extending.recover_extended(done, step.scene, prediction)
    wrong = partial(_wrong, step.scene, prediction, found)
    tell(trial, "extend", step.numbers, _boundaries(step.case), found, wrong)
    for identity, evidence, failures in extending.judge_extended(step.scene, prediction, found):
        judged(trial, identity, evidence, "extend", failures)


_WRONG = {
    "wrong-hidden-row": "rows", "wrong-next-token": "tokens", "wrong-draft-position": "positions",
    "drafted-key-kept": "slots", "wrong-draft-slot": "slots",
}  # fmt: skip
"""What is wrong of an entry, by the kind of failure."""


def _boundaries(case: VerifyCase) -> Named:
    return {"boundaries": tuple(request.prefix_len for request in case.requests)}


def _wrong(scene: Scene, prediction: Prediction, found: Found, given: Named) -> frozenset[str]:
    """If the path began there."""
    requests = tuple(
        replace(request, prefix_len=start, prefix_tokens=())
        for request, start in zip(scene.case.requests, given["boundaries"], strict=True)
    )
    other = replaced(scene, case=replace(scene.case, requests=requests))
    verdicts = extending.judge_extended(other, prediction, found)
    return frozenset(_WRONG[failure.kind] for *_, failures in verdicts for failure in failures)
