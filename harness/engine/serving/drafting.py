"""The drafting phase before a round: the backend lays it out in the drafter's cache.

The drafter itself is nobody's: what it writes are codes, which from then on lie in the slots of its
branches as drafted keys do.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.counter import address_hash
from treeproof.contract.drafting import DraftStep
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.checks.drafts import LaidOut, made_by
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.batch import Batch, of_round
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.stage import judged, tell
from treeproof.generate.drafting import DraftScene, served_columns, served_dims

_WORD = 704  # address word of what the drafter writes


def draft(trial: Trial, batch: Batch, memory: Memory, seed: int) -> None:
    """Have a phase laid out for the requests of a batch, judge it, and let the drafter write."""
    scene = _scene(batch, memory)
    given = _step(scene, memory)
    laid = LaidOut(scene, given, *made_by(trial, scene, given), memory.drafter)
    tell(trial, "draft", batch.numbers, {}, _gave(laid), lambda given: _wrong(laid))
    for identity, evidence, failures in laid.verdicts():
        if failures is not None:
            judged(trial, identity, evidence, "draft", failures)
    slots = torch.from_numpy(laid.slots.ravel()).to(memory.device)
    memory.write_drafter(slots, [address_hash(seed, _WORD, i) for i in range(len(slots))])


def _gave(laid: LaidOut) -> Named:
    """Of each request its branches, step by step."""
    found = {}
    for name, field in (("positions", "positions"), ("slots", "out_cache_loc")):
        if field in laid.made:
            grid = laid.made[field]
            steps = grid.reshape(len(grid), -1, laid.scene.topk).transpose(0, 1)
            found[name] = tuple(tuple(map(tuple, own)) for own in steps.tolist())
    return found


def _wrong(laid: LaidOut) -> frozenset[str]:
    """Where slots are wrong, what is read is not looked at: it is told by them."""
    names = {"position": "positions", "kv": "slots", "visibility": "lists"}
    found: set[str] = set()
    for identity, _, failures in laid.verdicts():
        if failures and "slots" not in found:
            found.add(names[identity])
    return frozenset(found)


def _scene(batch: Batch, memory: Memory) -> DraftScene:
    topk, steps = served_dims(batch.case.requests)
    layout, page = of_round(batch.case.layout), batch.case.layout.page_size
    prefixes = tuple(served.ready for served in batch.ready)
    slots = []
    for prefix, pages in zip(prefixes, batch.pages, strict=True):
        own = np.array(pages)[:, None] * page + np.arange(page)
        slots.append(own.ravel()[: served_columns(batch.case.requests, prefix, page)])
    k, v = memory.drafter
    return DraftScene(
        layout, prefixes, tuple(slots), tuple(batch.table_rows), topk, steps,
        (k.clone(), v.clone()), memory.device,
    )  # fmt: skip


def _step(scene: DraftScene, memory: Memory) -> DraftStep:
    """The table is that of the round before, with the columns in it that the phase may use."""
    for row, slots in zip(scene.request_slots, scene.slots, strict=True):
        memory.table[row, : len(slots)] = slots

    def on_device(numbers: object) -> Tensor:
        return torch.tensor(numbers, device=memory.device)

    k, v = memory.drafter
    return DraftStep(
        seq_lens=on_device(scene.prefix_lens),
        request_slots=on_device(scene.request_slots),
        req_to_token=on_device(memory.table),
        k_cache=k,
        v_cache=v,
        topk=scene.topk,
        num_steps=scene.num_steps,
        kv=scene.layout,
    )
