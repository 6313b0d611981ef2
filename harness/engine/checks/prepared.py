"""What all backends share on one case: its data, its candidates, and the oracle's answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Candidates
from treeproof.generate.data import LogicalData, logical_data
from treeproof.generate.pool import candidates
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction, predictions

MAX_WALKS = 64
"""Leaves that are accepted and committed in one check."""


@dataclass(frozen=True)
class Prepared:
    """One case on one device. `truth` has a result a request; `seconds` is the oracle's time."""

    scene: Scene
    candidates: Candidates
    data: LogicalData
    truth: tuple[PathResult, ...]
    rounds: tuple[Prediction, ...]
    seconds: float


@lru_cache(maxsize=2)
def prepare(case: VerifyCase, device: str) -> Prepared:
    """Everything that does not depend on the backend; the oracle runs before any of them."""
    scene = Scene.of(case, device)
    data = logical_data(case)
    made = candidates(case, scene.ledger, device)
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
        )
        for b, request in enumerate(case.requests)
    )
    seconds = time.perf_counter() - start
    return Prepared(scene, made, data, truth, tuple(predictions(case, MAX_WALKS)), seconds)
