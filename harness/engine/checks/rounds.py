"""What a round does after attention: every leaf's path is accepted, and committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import candidate, contract, kv, traversal
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.storage import Caches
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation

COMPANION_LANES = 32
"""Of what moves with keys and values and is no layer's, a hidden row and an indexer key."""


def judge_rounds(trial: Trial, x: VerifyInput) -> None:
    """Accept and commit, each judged by itself."""
    stages = (("accept", "walk", _accept), ("commit", "commit", _commit))
    due = [
        (probe, judge) for stage, probe, judge in stages if trial.has(stage) and trial.runs(probe)
    ]
    if not due:
        return
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    for probe, judge in due:
        with trial.probing(probe):
            try:
                judge(trial, seen)
            except Violation as violation:
                trial.broke(violation)


def _accept(trial: Trial, seen: VerifyInput) -> None:
    walks: list[candidate.Walk] = []
    failures: list[Failure] = []
    expected: list[int] = []
    observed: list[int] = []
    for prediction in trial.prepared.rounds:
        target = torch.tensor(prediction.tokens, device=trial.scene.device)
        given = copied(seen), copied(target)
        result = trial.call("accept", trial.instance.accept, *given)
        for before, after in zip((seen, target), given, strict=True):
            trial.unchanged("accept", before, after)
        done = contract.valid_accepted(
            result, len(trial.case.requests), trial.prepared.candidates.spec_steps
        )
        with trial.timed("check"):
            index, lengths = done.accept_index.tolist(), done.accept_len.tolist()
            tokens = done.tokens.tolist()
            failures += traversal.judge_walk(trial.case, prediction, index, lengths)
            failures += traversal.judge_bonus(trial.case, prediction, tokens, lengths)
        expected += [len(rows) - 1 for rows in prediction.rows]
        observed += [length - 1 for length in lengths]
        for b, accepted in enumerate(index):
            local = [i - trial.case.qo_indptr[b] for i in accepted if i != -1]
            # The last token emitted is the bonus, which is no row's token yet.
            walks.append((b, local, tokens[b][: max(0, lengths[b] - 1)]))
    if trial.borrows("accept"):
        return
    trial.accepted("accept", counted("greedy", once(expected), once(observed)))
    rows = [request.num_nodes for request in trial.case.requests]
    if trial.wants("traversal", "measured"):
        trial.recover("traversal", "measured", "parents", traversal.recover_walked(walks, rows))
        trial.judged("traversal", "measured", "accept", failures)
    if trial.wants("candidate", "measured"):
        _emitted(trial, walks, rows)


def _emitted(trial: Trial, walks: list[candidate.Walk], rows: list[int]) -> None:
    emitted = candidate.recover_emitted(walks, rows)
    wrong = candidate.judge_emitted(trial.case, walks)
    if not wrong and all(token is None for request in emitted for token in request):
        reason = "no draft token was accepted"
        trial.not_checked("candidate", "measured", "accept", reason)
        return
    trial.recover("candidate", "measured", "tokens", emitted)
    trial.judged("candidate", "measured", "accept", wrong)


@dataclass(frozen=True)
class _Pool:
    """A pair of caches that lives by the slots. `name`: empty for K and V themselves. `beside`: what
    other layers hold."""

    name: str
    before: tuple[Tensor, Tensor]
    beside: tuple[Tensor, Tensor]


def _pools(scene: Scene) -> tuple[_Pool, ...]:
    """K and V, whose codes are moved as they are, and what moves along with them."""
    shape, slots = scene.case.shape, scene.case.layout.num_slots
    k, v, k_beside, v_beside = (
        sign_codes(slots, shape.num_kv_heads, width, salt, scene.device).to(scene.stored_dtype)
        for width, salt in (
            (shape.head_dim, 3), (shape.v_head_dim, 4), (shape.head_dim, 7), (shape.v_head_dim, 8),
        )
    )  # fmt: skip
    hidden, indexer, *others = (
        sign_codes(slots, 1, COMPANION_LANES, salt, scene.device).to(scene.dtype)
        for salt in (9, 10, 11, 12)
    )
    return (
        _Pool("", (k, v), (k_beside, v_beside)),
        _Pool(kv.COMPANIONS, (hidden, indexer), (others[0], others[1])),
    )


def _moves_everything(moves: Sequence[kv.Move]) -> set[int]:
    """Rounds in which all pools are moved, as a pool takes as long as the first one: the one that moves
    most rows, and the last."""
    count = [
        sum(row != j for rows in m.prediction.rows for j, row in enumerate(rows)) for m in moves
    ]
    return {count.index(max(count)), len(count) - 1}


def _commit(trial: Trial, seen: VerifyInput) -> None:
    if not trial.wants("kv", "measured"):
        return
    pools, moves = _pools(trial.scene), trial.prepared.moves
    everywhere = _moves_everything(moves)
    failures: list[Failure] = []
    for turn, (move, accepted) in enumerate(zip(moves, trial.prepared.accepted, strict=True)):
        found: list[Failure] = []
        for pool in pools if turn in everywhere else pools[:1]:
            k, v = (cache.clone() for cache in pool.before)
            caches = Caches.laid(trial.case.layout, k, v, *pool.beside)
            given = copied(seen), copied(accepted)
            result = trial.call("commit", trial.instance.commit, *given, caches.k, caches.v)
            trial.unchanged("commit", seen, given[0])
            trial.unchanged("commit", accepted, given[1])
            done = contract.valid_committed(result, trial.scene)
            with trial.timed("check"):
                own = kv.judge_commit(trial.scene, move, done, pool.before, caches.by_slot())
                own += kv.judge_strayed(caches.strayed(), "commit")
                # What is wrong in the first pool is no news in another.
                found = found or [kv.in_pool(failure, pool.name) for failure in own]
        failures += found
    if trial.borrows("commit"):
        trial.not_checked("kv", "measured", "commit", "reference: its commit stage calls ours")
    else:
        trial.judged("kv", "measured", "commit", failures)
