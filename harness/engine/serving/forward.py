"""The model on the rows of a round, attended to by the backend in every layer; what it wrote is judged."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.decoder import Attention, Decoder
from treeproof.backends.reference.store import store_kv
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.stage import left_alone
from treeproof.engine.serving.step import Step
from treeproof.properties import contract, kv
from treeproof.properties.contract import same_bits
from treeproof.properties.probes.launch import Launched
from treeproof.properties.scene import Scene


def forward(
    trial: Trial, step: Step, decoder: Decoder, memory: Memory, x: VerifyInput, seen: VerifyInput
) -> Tensor:
    """Logits (T, vocabulary) after the rows of `x`, of which the backend is shown `seen`."""
    tokens = x.draft_token.clamp(0, decoder.model.vocab_size - 1)
    if not trial.has("attend"):
        trial.lends("attend")
        return decoder.forward(tokens, x.positions, _plainly(step, memory))
    with left_alone(trial, "attend", seen, first=step.first) as (given,):
        return decoder.forward(tokens, x.positions, _by_backend(trial, memory, x, given))


def _by_backend(trial: Trial, memory: Memory, x: VerifyInput, seen: VerifyInput) -> Attention:
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

    return attention


def _plainly(step: Step, memory: Memory) -> Attention:
    """Row by row over the slots of its prefix and its path; where the backend attends to nothing."""
    scene, shape = step.scene, step.case.shape
    read = [(row, torch.tensor(slots, device=scene.device)) for row, slots in _read(step)]

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory.k[layer, scene.tree_slots] = k.to(scene.dtype)[scene.real_index]
        memory.v[layer, scene.tree_slots] = v.to(scene.dtype)[scene.real_index]
        out = q.new_zeros(len(q), q.shape[1], shape.v_head_dim)
        for row, slots in read:
            keys, values = (cache[layer, slots].float() for cache in (memory.k, memory.v))
            group = q.shape[1] // keys.shape[1]
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            own = q[row].to(scene.dtype).float()
            scores = torch.einsum("hd,nhd->hn", own, keys) * shape.score_scale
            if shape.softcap is not None:
                scores = (scores / shape.softcap).tanh() * shape.softcap
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(dim=1), values)
        return out.to(scene.dtype).float()

    return attention


def _read(step: Step) -> list[tuple[int, list[int]]]:
    """Batch-global row and the slots that it reads, of every real row."""
    window, found = step.case.shape.window, []
    for b, request in enumerate(step.case.requests):
        columns, before = step.scene.ledger.columns[b], request.prefix_len
        for node, row in enumerate(request.row_of_node):
            path = [columns[before + request.row_of_node[on]] for on in request.tree.path(node)]
            slots = [*columns[:before], *path]
            found.append((step.case.qo_indptr[b] + row, slots[-window:] if window else slots))
    return found


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
