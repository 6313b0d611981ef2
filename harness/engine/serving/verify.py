"""One verify round on a backend: build, a forward with its attend in every layer, accept or sample, commit.

The backend is one object for all rounds, so what it keeps from one to the next is kept. Each stage
is judged by itself and then handed on as it is: what is wrong and not seen at once is seen later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.contract.sampling import Rule
from treeproof.engine.checks.declared import judge_declared
from treeproof.engine.checks.samples import sibling_order
from treeproof.engine.checks.stages import build
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.serving.accepting import accept
from treeproof.engine.serving.committing import commit, extend
from treeproof.engine.serving.ends import Wrong
from treeproof.engine.serving.finishing import Served, finish
from treeproof.engine.serving.forward import Seen, forward
from treeproof.engine.serving.layers import Layers
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.processing import process
from treeproof.engine.serving.sampling import Drawing, drawing, sample
from treeproof.engine.serving.step import Step
from treeproof.properties.batch import judge_batch


@dataclass(frozen=True)
class Done:
    """What a round came to, of each request: tokens emitted, the bonus last, of which some are served;
    ready lengths and next roots, and the rows accepted. `logits` are those of the rows on the path,
    (n, vocabulary) float64 on the CPU. `drawn`: the coins, where it was sampled."""

    emitted: tuple[tuple[int, ...], ...]
    served: list[Served]
    ready: tuple[int, ...]
    roots: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    logits: tuple[Tensor, ...]
    drawn: Drawing | None


def verify(
    trial: Trial, step: Step, layers: Layers, decoder: Decoder, memory: Memory, rule: Rule | None
) -> Done:
    """Run the round; `rule`: it is sampled by. Raises Wrong, and Violation as `Trial.call` does."""
    vocab = decoder.model.vocab_size
    kinds = [
        _built(trial, step.of(kind.shape), kind.instance or trial.instance)
        for kind in reversed(layers.kinds)
    ]
    kinds.reverse()
    seen = kinds[0].given
    drawn = None
    if rule is not None:
        drawn = drawing(step, rule, vocab, sibling_order(trial, kinds[0].x))
    memory.keep_mask(kinds[0].x.custom_mask)
    logits = forward(trial, step, layers, decoder, memory, kinds)
    memory.write_companions(step.scene.tree_slots, step.batch.codes)
    behind = logits.double().cpu()
    logits = process(trial, step, seen, logits)
    if drawn is None:
        accepted, prediction = accept(trial, step, seen, logits)
    else:
        accepted, prediction = sample(trial, step, seen, logits, drawn)
    served = finish(trial, step, accepted, prediction, vocab)
    done = commit(trial, step, seen, accepted, prediction, memory)
    if trial.has("extend"):
        extend(trial, step, seen, accepted, prediction)
    ready, roots = tuple(done.seq_lens.tolist()), tuple(done.next_root.tolist())
    firsts = step.case.qo_indptr
    on_paths = tuple(
        behind[[first + row for row in rows]]
        for first, rows in zip(firsts, prediction.rows, strict=False)
    )
    return Done(prediction.emitted, served, ready, roots, prediction.rows, on_paths, drawn)


def _built(trial: Trial, step: Step, instance: Any) -> Seen:
    """What this object builds for the layers of its kind."""
    trial.subject = step.scene
    built = build(trial, instance, step.scene, step.made)
    trial.produced = dict(built.produced)
    before = len(trial.failures)
    trial.note(*judge_batch(step.scene, step.made, built.produced))
    judge_declared(trial, built.x)
    if len(trial.failures) > before:
        raise Wrong
    given = garble(built.x, trial.backend.consumes, step.case.seed)
    return Seen(step.scene, built.x, given, instance)
