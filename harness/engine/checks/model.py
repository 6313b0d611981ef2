"""A small model around the backend: its attend in every layer, each with a cache of its own.

The decoder turns what a layer got into what the next one gets, so what one layer does wrongly, or
does to another, shows where single launches do not: one plan and several caches, windowed layers
among full ones, tokens and positions that only a model sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.backends.reference.store import store_kv
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Cell
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.shape import Full
from treeproof.contract.target_model import TargetModel
from treeproof.engine.checks.random_launch import unwritten_shows
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.stages import build, close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.target import TargetResult, held_of, logits_behind
from treeproof.oracles.target_errors import Errors
from treeproof.oracles.target_steps import Memory, Steps
from treeproof.properties.layers import (
    LayerRun,
    errors_of,
    judge_end,
    judge_layer,
    judge_writes,
)
from treeproof.properties.probes.launch import Contents, launch, zeros
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation

_ONE_IN, _ONE_IN_BULK = 16, 512
"""Cases that have time for it; seed 0, of cases by hand, is not among them."""

_TURN = 3

_MOST_COLUMNS = 512
"""Prefix columns and rows of a batch, beyond which the oracle takes longer than all other probes."""


def judge_model(trial: Trial) -> None:
    """Skipped where single launches are wrong already: they would be wrong in every layer."""
    turns = _ONE_IN_BULK if trial.options.bulk else _ONE_IN
    due = trial.options.complete or trial.case.seed % turns == _TURN
    wrong = trial.broken or any(
        f.evidence == "measured" and f.identity in ("output", "visibility", "kv")
        for f in trial.failures
    )
    if not (trial.runs("model") and trial.has("attend") and due) or wrong:
        return
    wanted = trial.wants("output", "measured") or trial.wants("kv", "measured")
    layered = layers_of(trial) if wanted else None
    if layered is None:
        return
    with trial.probing("model"), trial.timed("probe"), unwritten_shows():
        try:
            _judge(trial, *layered)
        except Violation as violation:
            failure = violation.failure
            message = f"as attention of a small model: {failure.message}"
            trial.broke(Violation(replace(failure, message=message)))


def layers_of(trial: Trial, times: int = 1) -> tuple[TargetModel, tuple[VerifyCase, ...]] | None:
    """The model, and the case as each of its layers has it; None where the backend takes no such case, or
    where it is too long.

    A windowed case has a full layer between two windowed ones, where pages that no window reaches have
    not been given back. `times`: all these layers so often, one after another.
    """
    columns = sum(request.prefix_len + request.num_nodes for request in trial.case.requests)
    if columns > _MOST_COLUMNS:
        return None
    case, refusal = trial.case, trial.backend.capabilities.refusal
    plain = replace(case.shape, sinks=False, alibi=False, kv_dtype=None)
    own = replace(case, shape=plain)
    if refusal(own, trial.options.device):
        return None
    of_layer: tuple[VerifyCase, ...] = own, own
    if plain.window is not None and not case.layout.evicted:
        full = replace(own, shape=replace(plain, visibility=Full()))
        if refusal(full, trial.options.device) is None:
            of_layer = own, full, own
    of_layer *= times
    model = TargetModel(
        heads=plain.num_q_heads, kv_heads=plain.num_kv_heads, head_dim=plain.head_dim,
        v_head_dim=plain.v_head_dim, layers=len(of_layer), rotary=plain.rotary, scale=plain.scale,
        softcap=plain.softcap, windows=tuple(layer.shape.window for layer in of_layer),
    )  # fmt: skip
    return model, of_layer


@dataclass(frozen=True)
class Kind:
    """Layers of one kind, run on an object of their own, as engines have one for each: what it built, and
    the one plan of the step."""

    scene: Scene
    instance: Any
    x: VerifyInput
    seen: VerifyInput
    state: Any


def _judge(trial: Trial, model: TargetModel, of_layer: Sequence[VerifyCase]) -> None:
    kinds = {case: _planned(trial, case) for case in dict.fromkeys(of_layer)}
    try:
        runs, logits = forward(trial, model, [kinds[case] for case in of_layer])
    finally:
        for kind in kinds.values():
            close(trial, kind.instance)
    written = judge_writes(runs) if trial.wants("kv", "measured") else []
    if written:
        trial.judged("kv", "measured", "attend", written)
    if trial.wants("output", "measured"):
        _judge_outputs(trial, model, runs, None if written else logits)


def _judge_outputs(
    trial: Trial, model: TargetModel, runs: Sequence[LayerRun], logits: Tensor | None
) -> None:
    """Each layer, and where all are right the logits behind them; None: rows were written wrongly."""
    numerics, able = trial.backend.numerics, trial.backend.capabilities
    failures, ties = [f for run in runs for f in judge_layer(run, numerics, able)[0]], 0
    if logits is not None and not failures:
        scene = runs[0].scene
        errors = errors_of(scene, numerics, able)
        truth = _truth(trial.case, model, scene.case.shape.dtype, errors)
        failures, ties = judge_end(scene, truth, logits)
    trial.judged("output", "measured", "attend", failures)
    if ties and not failures:
        reason = f"{ties} rows choose another of two tokens that rounding leaves open"
        trial.cells.append(
            Cell(
                identity="output", evidence="measured", status="tie", stage="attend", reason=reason
            )
        )


def _planned(trial: Trial, case: VerifyCase) -> Kind:
    scene, made = staged(case, trial.options.device)
    instance = trial.call("plan", trial.backend.make)
    return planned(trial, scene, instance, build(trial, instance, scene, made).x)


def planned(trial: Trial, scene: Scene, instance: Any, x: VerifyInput) -> Kind:
    """What was built, planned once for the step."""
    seen = garble(x, trial.backend.consumes, scene.case.seed)
    plan = getattr(instance, "plan", None)
    state = seen if plan is None else trial.call("plan", plan, seen)
    return Kind(scene, instance, x, seen, state)


def forward(
    trial: Trial, model: TargetModel, kinds: Sequence[Kind]
) -> tuple[list[LayerRun], Tensor]:
    """Every layer's launch, and the logits (T, vocabulary)."""
    held = _held(trial.case, model, trial.case.shape.dtype)
    runs: list[LayerRun] = []

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kind = kinds[layer]
        laid = _laid(kind.scene, [of[layer] for of in held], q, k, v)

        def attend(x: VerifyInput, *tensors: Tensor) -> Any:
            if not trial.backend.capabilities.stores_kv:
                store_kv(kind.x, *tensors[1:])
            return trial.call("attend", kind.instance.attend, kind.state, *tensors)

        done = launch(attend, kind.scene, kind.seen, laid, "model")
        after = done.k_cache.clone(), done.v_cache.clone()
        runs.append(LayerRun(layer, kind.scene, laid, done, *after))
        return done.attended.out.masked_fill(kind.scene.padding[:, None, None], 0.0)

    x, scene = kinds[0].x, kinds[0].scene
    decoder = Decoder(model, device=scene.device)
    return runs, decoder.forward(x.draft_token % model.vocab_size, x.positions, attention)


def _laid(scene: Scene, held: Sequence[Memory], q: Tensor, k: Tensor, v: Tensor) -> Contents:
    """A layer's cache: what the prefixes left in it, and the rows' own, as its launch will write them."""
    shape, prefix = scene.case.shape, scene.prefix_columns.slot
    kept = (prefix >= 0).nonzero()[:, 0]
    caches = []
    for rows, width, before in (
        (k, shape.head_dim, [one.keys for one in held]),
        (v, shape.v_head_dim, [one.values for one in held]),
    ):
        cache = zeros(scene, width)
        # Loud enough to show where it is read, and no more than a number.
        cache += 8.0
        numbers = torch.cat([one[0].transpose(0, 1) for one in before]).to(cache)
        cache[prefix[kept]] = numbers[kept]
        cache[scene.row_slot[scene.real_index]] = rows[scene.real_index].to(cache)
        caches.append(cache)
    keys, values = caches
    return Contents(
        q.to(keys.dtype), keys, values, torch.full_like(keys[0], 8.0),
        torch.full_like(values[0], -8.0), own_layer=True,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _held(case: VerifyCase, model: TargetModel, dtype: str) -> list[list[Memory]]:
    """What each layer holds of each request's prefix, rounded as a cache of this dtype rounds it."""
    steps, kept = Steps(model, errors=None), getattr(torch, dtype)
    return [
        [
            Memory(layer.keys.to(kept).double(), layer.values.to(kept).double())
            for layer in held_of(steps, tokens.tolist())
        ]
        for tokens in prefix_tokens(case, model.vocab_size)
    ]


@lru_cache(maxsize=8)
def _truth(case: VerifyCase, model: TargetModel, dtype: str, errors: Errors) -> TargetResult:
    steps = Steps(model, errors)
    before = [
        [
            Memory(
                layer.keys.expand(steps.runs, -1, -1, -1),
                layer.values.expand(steps.runs, -1, -1, -1),
            )
            for layer in of_request
        ]
        for of_request in _held(case, model, dtype)
    ]
    return logits_behind(
        steps,
        before,
        [request.tree for request in case.requests],
        [[t % model.vocab_size for t in request.tree.tokens] for request in case.requests],
    )
