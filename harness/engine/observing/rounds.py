"""What was accepted and committed, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from treeproof.contract.inputs import VerifyInput
from treeproof.diagnosis.evidence import Commit, Group, Walk
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.observing.contents import bits, in_part, rows_by_bits, slot_codes
from treeproof.properties import contract
from treeproof.properties.probes.storage import Caches


def observe_accept(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("accept"):
        return
    seen, rounds = garble(x, trial.backend.consumes, trial.case.seed), []
    for prediction in trial.prepared.rounds:
        target = torch.tensor(prediction.tokens, device=trial.scene.device)
        given = copied(seen), copied(target)
        result = trial.call("accept", trial.instance.accept, *given)
        for before, after in zip((seen, target), given, strict=True):
            trial.unchanged("accept", before, after)
        done = contract.valid_accepted(
            result, len(trial.case.requests), trial.prepared.candidates.spec_steps
        )
        rounds.append(
            tuple(
                Walk(local(index, trial.case.qo_indptr[b]), length, trimmed(tokens))
                for b, (index, length, tokens) in enumerate(
                    zip(
                        done.accept_index.tolist(),
                        done.accept_len.tolist(),
                        done.tokens.tolist(),
                        strict=True,
                    )
                )
            )
        )
    if not trial.borrows("accept"):
        found["accept"] = tuple(rounds)


def local(index: list[int], first: int) -> tuple[int, ...]:
    """Rows of a request, -1 a hole."""
    return tuple(row if row == -1 else row - first for row in trimmed(index))


def trimmed(values: list[int]) -> tuple[int, ...]:
    """Without the -1 at its end."""
    end = len(values)
    while end and values[end - 1] == -1:
        end -= 1
    return tuple(values[:end])


def observe_commit(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("commit"):
        return
    shape, slots, scene = trial.case.shape, trial.case.layout.num_slots, trial.scene
    k_codes, v_codes = (
        slot_codes(slots, shape.num_kv_heads, width, salt, scene.device).to(scene.stored_dtype)
        for width, salt in ((shape.head_dim, 3), (shape.v_head_dim, 4))
    )
    before = k_codes, v_codes
    slot_of = [rows_by_bits(cache) for cache in before]
    seen, rounds = garble(x, trial.backend.consumes, trial.case.seed), []
    for accepted in trial.prepared.accepted:
        after = before[0].clone(), before[1].clone()
        caches = Caches.laid(trial.case.layout, *after, before[0][0], before[1][0])
        given = copied(seen), copied(accepted)
        result = trial.call("commit", trial.instance.commit, *given, caches.k, caches.v)
        trial.unchanged("commit", seen, given[0])
        trial.unchanged("commit", accepted, given[1])
        done = contract.valid_committed(result, scene)
        after = caches.by_slot()
        k, v = (
            np.array(
                [
                    names[bits(row)] if bits(row) in names else in_part(row, was, first)
                    for row, was in zip(cache.cpu(), first, strict=True)
                ],
                dtype=np.int64,
            )
            for names, cache, first in zip(
                slot_of, after, (cache.cpu() for cache in before), strict=True
            )
        )
        rounds.append(Commit(k, v, tuple(done.seq_lens.tolist()), tuple(done.next_root.tolist())))
    if not trial.borrows("commit"):
        found["commit"] = tuple(rounds)
