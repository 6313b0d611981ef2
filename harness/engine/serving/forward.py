"""The model on the rows of a round, attended to by the backend in every layer; what it wrote is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.decoder import Attention, Decoder
from treeproof.backends.reference.store import store_kv
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.attention import attend
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.layers import Layers
from treeproof.engine.serving.memory import Memory, movable
from treeproof.engine.serving.stage import left_alone
from treeproof.engine.serving.step import Step
from treeproof.properties import contract, kv
from treeproof.properties.contract import same_bits
from treeproof.properties.probes.launch import Launched
from treeproof.properties.scene import Scene


@dataclass(frozen=True)
class Seen:
    """A round as layers of one kind have it: the scene, what was built for them, what the backend is shown
    of that, and the object that attends."""

    scene: Scene
    x: VerifyInput
    given: VerifyInput
    instance: Any


def forward(
    trial: Trial,
    step: Step,
    layers: Layers,
    decoder: Decoder,
    memory: Memory,
    kinds: Sequence[Seen],
) -> Tensor:
    """Logits (T, vocabulary) after the rows, which are those of each kind."""
    x = kinds[0].x
    tokens = x.draft_token.clamp(0, decoder.model.vocab_size - 1)
    if not trial.has("attend"):
        trial.lends("attend")
        return decoder.forward(tokens, x.positions, _plainly(step, layers, memory))
    with ExitStack() as stack:
        attending = []
        for kind in kinds:
            entered = left_alone(trial, "attend", kind.given, first=step.first)
            (given,) = stack.enter_context(entered)
            attending.append(_by_backend(trial, memory, replace(kind, given=given)))

        def attention(layer: int, *rows: Tensor) -> Tensor:
            return attending[layers.of_layer[layer]](layer, *rows)

        return decoder.forward(tokens, x.positions, attention)


def _by_backend(trial: Trial, memory: Memory, kind: Seen) -> Attention:
    scene, instance, state = kind.scene, kind.instance, kind.given
    plan = getattr(instance, "plan", None)
    if plan is not None:
        state = trial.call("plan", plan, kind.given)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = memory.k[layer], memory.v[layer]
        stored = memory.stored(k, v)
        before = k_cache.clone(), v_cache.clone()
        q = q.to(scene.dtype, copy=True)
        k, v = (rows.clone() for rows in memory.handed(*stored))
        if not trial.backend.capabilities.stores_kv:
            store_kv(kind.x, k, v, k_cache, v_cache)
        out = trial.call("attend", instance.attend, state, q, k, v, k_cache, v_cache)
        attended = contract.valid_attended(out, scene)
        if not math.isfinite(float(attended.out.sum())):  # or it is too large, or padding is none
            contract.require_finite(contract.not_finite(attended.out, scene), scene, "rounds")
        _judge_writes(trial, scene, stored, before, (k_cache, v_cache))
        # What padded rows hold is free, and not to be handed on.
        return attended.out.float().masked_fill(scene.padding[:, None, None], 0.0)

    return attention


def _plainly(step: Step, layers: Layers, memory: Memory) -> Attention:
    """Row by row over the slots of its prefix and its path; where the backend attends to nothing."""
    scene, real = step.scene, step.scene.real_index
    read = [(row, torch.tensor(slots, device=scene.device)) for row, slots in _read(step)]

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = layers.shape(layer)
        memory.write(layer, scene.tree_slots, *memory.stored(k[real], v[real]))
        out = q.new_zeros(len(q), q.shape[1], shape.v_head_dim)
        for row, slots in read:
            slots = slots[-shape.window :] if shape.window else slots
            distance = torch.arange(len(slots) - 1, -1, -1, device=slots.device)[None]
            own, (keys, values) = memory.rounded(q[row : row + 1]), memory.read(layer, slots)
            out[row] = attend(shape, layers.parameters, own, keys, values, distance)[0]
        return out

    return attention


def _read(step: Step) -> list[tuple[int, list[int]]]:
    """Batch-global row of every real row, and the slots of its prefix and its path."""
    found = []
    for b, request in enumerate(step.case.requests):
        columns, before = step.scene.ledger.columns[b], request.prefix_len
        for node, row in enumerate(request.row_of_node):
            path = [columns[before + request.row_of_node[on]] for on in request.tree.path(node)]
            found.append((step.case.qo_indptr[b] + row, [*columns[:before], *path]))
    return found


def _judge_writes(
    trial: Trial,
    scene: Scene,
    rows: tuple[Tensor, Tensor],
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> None:
    """Every row's K and V are in its slot, as they are to be stored, and nothing else has changed."""
    pad, whole = scene.case.layout.pad_slot, len(scene.real) == scene.num_rows
    right = True
    for row, was, now in zip(rows, before, after, strict=True):
        row, was, now = map(movable, (row, was, now))
        wanted = was.clone()
        wanted[scene.tree_slots] = row if whole else row[scene.real_index]
        if pad >= 0:
            wanted[pad] = now[pad]
        right = right and same_bits(wanted, now)
    if not right:
        (k, v), (k_before, v_before), (k_cache, v_cache) = rows, before, after
        launched = Launched(
            Attended(out=k), k, k, v, k, v, k, v, k_before, v_before, k_cache, v_cache
        )
        stop_at(trial, kv.judge_writes(scene, launched))
