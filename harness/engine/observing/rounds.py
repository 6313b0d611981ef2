"""What was accepted and committed, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.diagnosis.evidence import Commit, Group, Origins, Walk
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.rounds import COMPANION_LANES
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
    seen, rounds = garble(x, trial.backend.consumes, trial.case.seed), []
    pools = _pools(trial)
    for accepted in trial.prepared.accepted:
        (own, done), (beside, _) = (_committed(trial, seen, accepted, pool) for pool in pools)
        lengths, roots = done.seq_lens.tolist(), done.next_root.tolist()
        rounds.append(Commit(*own, tuple(lengths), tuple(roots), beside))
    if not trial.borrows("commit"):
        found["commit"] = tuple(rounds)


def _pools(trial: Trial) -> tuple[tuple[Tensor, Tensor], ...]:
    """What is moved, each slot with contents of its own: K and V, and what lies beside them."""
    scene, shape = trial.scene, trial.case.shape

    def codes(heads: int, width: int, salt: int, dtype: torch.dtype) -> Tensor:
        slots = trial.case.layout.num_slots
        return slot_codes(slots, heads, width, salt, scene.device).to(dtype)

    heads, stored = shape.num_kv_heads, scene.stored_dtype
    return (
        (codes(heads, shape.head_dim, 3, stored), codes(heads, shape.v_head_dim, 4, stored)),
        (codes(1, COMPANION_LANES, 5, scene.dtype), codes(1, COMPANION_LANES, 6, scene.dtype)),
    )


def _committed(
    trial: Trial, seen: VerifyInput, accepted: Accepted, before: tuple[Tensor, Tensor]
) -> tuple[tuple[Origins, Origins], Committed]:
    """Slot whose old contents each slot of both caches holds after a commit, and what that returned."""
    caches = Caches.laid(
        trial.case.layout, before[0].clone(), before[1].clone(), before[0][0], before[1][0]
    )
    given = copied(seen), copied(accepted)
    result = trial.call("commit", trial.instance.commit, *given, caches.k, caches.v)
    trial.unchanged("commit", seen, given[0])
    trial.unchanged("commit", accepted, given[1])
    k, v = (_origins(now, was) for now, was in zip(caches.by_slot(), before, strict=True))
    return (k, v), contract.valid_committed(result, trial.scene)


def _origins(now: Tensor, before: Tensor) -> Origins:
    now, before = now.cpu(), before.cpu()
    names = rows_by_bits(before)
    return np.array(
        [
            names[bits(row)] if bits(row) in names else in_part(row, was, before)
            for row, was in zip(now, before, strict=True)
        ],
        dtype=np.int64,
    )
