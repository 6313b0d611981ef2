"""One verify round on a backend: build, a forward with its attend in every layer, accept, commit.

The backend is one object for all rounds, so what it keeps from one to the next is kept. Each stage
is judged by itself and then handed on as it is: what is wrong and not seen at once is seen later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeproof.backends.decoder import Decoder
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.stages import build
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.serving.accepting import accept
from treeproof.engine.serving.committing import commit, extend
from treeproof.engine.serving.ends import Wrong
from treeproof.engine.serving.forward import forward
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.step import Step
from treeproof.properties.batch import judge_batch


@dataclass(frozen=True)
class Done:
    """What a round came to: tokens emitted a request, the bonus last; ready lengths and next roots."""

    emitted: tuple[tuple[int, ...], ...]
    ready: tuple[int, ...]
    roots: tuple[int, ...]


def verify(trial: Trial, step: Step, decoder: Decoder, memory: Memory, codes: list[int]) -> Done:
    """Run the round. `codes` are those of all real rows, for the companions. Raises Wrong, and
    Violation as `Trial.call` does."""
    trial.subject = step.scene
    built = build(trial, trial.instance, step.scene, step.made)
    _judge_built(trial, step, built.x, built.produced)
    memory.keep_mask(built.x.custom_mask)
    seen = garble(built.x, trial.backend.consumes, step.case.seed)
    logits = forward(trial, step, decoder, memory, built.x, seen)
    memory.write_companions(step.scene.tree_slots, codes)
    accepted, prediction = accept(trial, step, seen, logits)
    done = commit(trial, step, seen, accepted, prediction, memory)
    if trial.has("extend"):
        extend(trial, step, seen, accepted, prediction)
    return Done(prediction.emitted, tuple(done.seq_lens.tolist()), tuple(done.next_root.tolist()))


def _judge_built(trial: Trial, step: Step, x: VerifyInput, produced: Mapping[str, Any]) -> None:
    trial.produced = dict(produced)
    before = len(trial.failures)
    trial.note(*judge_batch(step.scene, step.made, produced))
    judge_declared(trial, x)
    if len(trial.failures) > before:
        raise Wrong
