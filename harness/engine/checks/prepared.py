"""What all backends share on one case: its data, its candidates, and the oracle's answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Accepted, Candidates
from treeproof.generate.data import LogicalData, logical_data
from treeproof.generate.pool import candidates
from treeproof.oracles.path import PathResult, attend_batch
from treeproof.properties.kv import Move, moves
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction, predictions


@dataclass(frozen=True)
class Prepared:
    """One case on one device. `truth` holds all nodes, one request after the other; `seconds` is the oracle's time.

    `moves` and `accepted` have an entry a round: what its commit must do, and the right result of its
    accept, so that a commit is judged by itself.
    """

    scene: Scene
    candidates: Candidates
    data: LogicalData
    truth: PathResult
    rounds: tuple[Prediction, ...]
    moves: tuple[Move, ...]
    accepted: tuple[Accepted, ...]
    seconds: float


@lru_cache(maxsize=2)
def prepare(case: VerifyCase, device: str, leaves: int | None) -> Prepared:
    """Everything that does not depend on the backend; the oracle runs before any of them.

    `leaves`: at most so many are accepted and committed; None: all of them.
    """
    scene = Scene.of(case, device)
    data = logical_data(case, device)
    made = candidates(case, scene.ledger, device)
    start = time.perf_counter()
    truth = attend_batch(
        [request.tree for request in case.requests],
        [request.prefix_len for request in case.requests],
        case.shape,
        data.q,
        data.k_prefix,
        data.v_prefix,
        data.k_tree,
        data.v_tree,
        scene.layer,
    )
    if scene.device.type == "cuda":
        torch.cuda.synchronize(scene.device)
    seconds = time.perf_counter() - start
    rounds = tuple(predictions(case, leaves))
    accepted = tuple(_accepted(scene, prediction, made.spec_steps + 1) for prediction in rounds)
    return Prepared(scene, made, data, truth, rounds, moves(scene, rounds), accepted, seconds)


def _accepted(scene: Scene, prediction: Prediction, width: int) -> Accepted:
    """What a right accept returns, -1 padded to `width`."""

    def padded(values: Sequence[int]) -> list[int]:
        return [*values, *[-1] * (width - len(values))]

    index = [
        padded([scene.case.qo_indptr[b] + row for row in rows])
        for b, rows in enumerate(prediction.rows)
    ]
    return Accepted(
        accept_index=torch.tensor(index, device=scene.device),
        accept_len=torch.tensor([len(rows) for rows in prediction.rows], device=scene.device),
        tokens=torch.tensor([padded(t) for t in prediction.emitted], device=scene.device),
    )
