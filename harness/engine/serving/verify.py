"""One verify round on a backend: build, a forward with its attend in every layer, accept, commit.

The backend is one object for all rounds, so what it keeps from one to the next is kept. Each stage
is judged by itself and then handed on as it is: what is wrong and not seen at once is seen later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from treeproof.backends import reference
from treeproof.backends.decoder import Decoder
from treeproof.backends.reference.store import store_kv
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted, Attended, Committed, VerifyInput
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.stages import build
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.serving.ends import Wrong, stop_at
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.step import Step
from treeproof.oracles.traversal import greedy_walk
from treeproof.properties import contract, kv, traversal
from treeproof.properties.batch import judge_batch
from treeproof.properties.contract import same_bits
from treeproof.properties.probes.launch import Launched
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction


@dataclass(frozen=True)
class Done:
    """What a round came to: tokens emitted a request, the bonus last; ready lengths and next roots."""

    emitted: tuple[tuple[int, ...], ...]
    ready: tuple[int, ...]
    roots: tuple[int, ...]


def verify(trial: Trial, step: Step, decoder: Decoder, memory: Memory, codes: list[int]) -> Done:
    """Run the round. `codes` are those of all real rows, for the companions. Raises Wrong, and
    Violation as `Trial.call` does.

    Only in a first round are stages held to leaving their inputs alone: what one does to them shows
    there, and copies and comparisons take as long as the round itself.
    """
    trial.subject = step.scene
    built = build(trial, trial.instance, step.scene, step.made)
    _judge_built(trial, step, built.x, built.produced)
    memory.keep_mask(built.x.custom_mask)
    seen = garble(built.x, trial.backend.consumes, step.case.seed)
    with _left_alone(trial, step, "attend", seen) as (given,):
        logits = _forward(trial, decoder, memory, built.x, given)
    memory.write_companions(step.scene.tree_slots, codes)
    predicted = logits.argmax(1)
    accepted, prediction = _accept(trial, step, seen, built.x, predicted)
    done = _commit(trial, step, seen, built.x, accepted, prediction, memory)
    return Done(prediction.emitted, tuple(done.seq_lens.tolist()), tuple(done.next_root.tolist()))


@contextmanager
def _left_alone(trial: Trial, step: Step, stage: str, *values: Any) -> Iterator[tuple[Any, ...]]:
    """Inputs for a stage; in a first round copies, which are the same afterwards."""
    if not step.first:
        yield values
        return
    given = tuple(map(copied, values))
    yield given
    for before, after in zip(values, given, strict=True):
        trial.unchanged(stage, before, after)


def _judge_built(trial: Trial, step: Step, x: VerifyInput, produced: Mapping[str, Any]) -> None:
    trial.produced = dict(produced)
    before = len(trial.failures)
    trial.note(*judge_batch(step.scene, step.made, produced))
    judge_declared(trial, x)
    if len(trial.failures) > before:
        raise Wrong


def _forward(
    trial: Trial, decoder: Decoder, memory: Memory, x: VerifyInput, seen: VerifyInput
) -> Tensor:
    """Logits (T, vocabulary): the model on the rows as they were built, attended to by the backend."""
    scene, instance, state = trial.scene, trial.instance, seen
    plan = getattr(instance, "plan", None)
    if plan is not None:
        state = trial.call("plan", plan, seen)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = memory.k[layer], memory.v[layer]
        q, k, v = q.to(scene.dtype), k.to(scene.dtype), v.to(scene.dtype)
        before = k_cache.clone(), v_cache.clone()
        if not trial.backend.capabilities.stores_kv:
            store_kv(x, k, v, k_cache, v_cache)
        given = q.clone(), k.clone(), v.clone()
        out = trial.call("attend", instance.attend, state, *given, k_cache, v_cache)
        attended = contract.valid_attended(out, scene)
        contract.require_finite(contract.not_finite(attended.out, scene), scene, "rounds")
        _judge_writes(trial, scene, (k, v), before, (k_cache, v_cache))
        # What padded rows hold is free, and not to be handed on.
        return attended.out.float().masked_fill(scene.padding[:, None, None], 0.0)

    tokens = x.draft_token.clamp(0, decoder.model.vocab_size - 1)
    return decoder.forward(tokens, x.positions, attention)


def _judge_writes(
    trial: Trial,
    scene: Scene,
    rows: tuple[Tensor, Tensor],
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> None:
    """Every row's K and V are in its slot, and nothing else has changed."""
    pad = scene.case.layout.pad_slot
    right = True
    for row, was, now in zip(rows, before, after, strict=True):
        wanted = was.clone()
        wanted[scene.tree_slots] = row[scene.real_index]
        if pad >= 0:
            wanted[pad] = now[pad]
        right = right and same_bits(wanted, now)
    if not right:
        (k, v), (k_before, v_before), (k_cache, v_cache) = rows, before, after
        launched = Launched(
            Attended(out=k), k, k, v, k, v, k, v, k_before, v_before, k_cache, v_cache
        )
        stop_at(trial, kv.judge_writes(scene, launched))


def _accept(
    trial: Trial, step: Step, seen: VerifyInput, x: VerifyInput, predicted: Tensor
) -> tuple[Accepted, Prediction]:
    scene = step.scene
    if trial.has("accept"):
        with _left_alone(trial, step, "accept", seen, predicted) as given:
            result = trial.call("accept", trial.instance.accept, *given)
    else:
        result = reference.accept(x, predicted)
    accepted = contract.valid_accepted(result, len(scene.case.requests), step.made.spec_steps)
    wanted = _prediction(step, predicted.tolist())
    index, lengths = accepted.accept_index.tolist(), accepted.accept_len.tolist()
    failures = traversal.judge_walk(step.case, wanted, index, lengths)
    failures += traversal.judge_bonus(step.case, wanted, accepted.tokens.tolist(), lengths)
    stop_at(trial, failures)
    return accepted, wanted


def _prediction(step: Step, tokens: list[int]) -> Prediction:
    """The walk that must follow from what the target predicts at each row."""
    rows, emitted = [], []
    for b, request in enumerate(step.case.requests):
        first = step.case.qo_indptr[b]
        of_node = [tokens[first + row] for row in request.row_of_node]
        walk = greedy_walk(request.tree, of_node, max_len=len(request.tree))
        rows.append(tuple(request.row_of_node[node] for node in walk.nodes))
        emitted.append(tuple(walk.tokens))
    return Prediction(tuple(tokens), tuple(rows), tuple(emitted))


def _commit(
    trial: Trial,
    step: Step,
    seen: VerifyInput,
    x: VerifyInput,
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
            with _left_alone(trial, step, "commit", seen, accepted) as given:
                result = trial.call("commit", trial.instance.commit, *given, k_cache, v_cache)
        else:
            result = reference.commit(x, accepted, k_cache, v_cache)
        done = contract.valid_committed(result, step.scene)
        failures = kv.judge_commit(step.scene, move, done, before, (k_cache, v_cache))
        if pool:
            failures = [_in_pool(f, pool, len(memory.k)) for f in failures]
        stop_at(trial, failures)
        first = first or done
    assert first is not None
    return first


def _in_pool(failure: Failure, pool: int, layers: int) -> Failure:
    where = f"layer {pool}" if pool < layers else "what lies beside keys and values"
    return replace(failure, message=f"{failure.message}, in {where}")
