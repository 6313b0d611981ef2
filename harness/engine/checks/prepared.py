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
from treeproof.generate.layer import layer_parameters
from treeproof.generate.pool import candidates
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.properties.kv import Move, moves
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction, predictions


@dataclass(frozen=True)
class Prepared:
    """One case on one device. `truth` has a result a request; `seconds` is the oracle's time.

    `moves` and `accepted` have an entry a round: what its commit must do, and the right result of its
    accept, so that a commit is judged by itself.
    """

    scene: Scene
    candidates: Candidates
    data: LogicalData
    truth: tuple[PathResult, ...]
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
    data = logical_data(case)
    made = candidates(case, scene.ledger, device)
    layer = layer_parameters(case)  # where the data are
    start = time.perf_counter()
    truth = tuple(
        attend_paths(
            request.tree,
            request.prefix_len,
            case.shape,
            data.q[b],
            data.k_prefix[b],
            data.v_prefix[b],
            data.k_tree[b],
            data.v_tree[b],
            layer,
        )
        for b, request in enumerate(case.requests)
    )
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
