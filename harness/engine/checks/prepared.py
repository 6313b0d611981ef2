"""What all backends share on one case: its data, its candidates, and the oracle's answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Accepted, Candidates
from treeproof.contract.sampling import CHAIN, Rule
from treeproof.generate.data import LogicalData, logical_data
from treeproof.generate.pool import candidates
from treeproof.oracles.path import PathResult, attend_batch
from treeproof.properties.kv import Move, moves
from treeproof.properties.plans import Siblings
from treeproof.properties.processing import Processed, processings
from treeproof.properties.sampled import Sampled
from treeproof.properties.sampling_rules import as_chains, launches
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction, predictions


@dataclass(frozen=True)
class SampledLaunches:
    """Those of each rule, made when a backend knows it."""

    case: VerifyCase

    @cached_property
    def _made(self) -> dict[tuple[Rule, Siblings | None], list[Sampled]]:
        return {}

    def of(self, rule: Rule, siblings: Siblings | None = None) -> list[Sampled]:
        """`siblings`: as links go through them, None: by ascending rows."""
        kind = rule, siblings
        if kind not in self._made:
            self._made[kind] = launches(self.case_of(rule), rule, siblings)
        return self._made[kind]

    def case_of(self, rule: Rule) -> VerifyCase:
        """The trees that a rule is asked about."""
        return as_chains(self.case) if rule == CHAIN else self.case


@dataclass(frozen=True)
class Prepared:
    """One case on one device. `truth` holds all nodes, one request after the other; `seconds` is the
    oracle's time. At most `leaves` are accepted and committed, a round each and one more that stops
    on the way, of which the first `most_rounds` are kept; None: all of them.
    """

    scene: Scene
    candidates: Candidates
    data: LogicalData
    truth: PathResult
    leaves: int | None
    seconds: float
    most_rounds: int | None = None

    @cached_property
    def rounds(self) -> tuple[Prediction, ...]:
        """What the target predicts in each round."""
        return tuple(predictions(self.scene.case, self.leaves)[: self.most_rounds])

    @cached_property
    def sampled(self) -> SampledLaunches:
        """Probabilities and coins of each launch of sampled acceptance."""
        return SampledLaunches(self.scene.case)

    @cached_property
    def processed(self) -> Processed:
        """Logits, and what is asked of them."""
        return processings(self.scene.case)

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """What the commit of each round must do."""
        return moves(self.scene, self.rounds)

    @cached_property
    def accepted(self) -> tuple[Accepted, ...]:
        """The right result of each round's accept, so that a commit is judged by itself."""
        width = self.candidates.spec_steps + 1
        return tuple(_accepted(self.scene, prediction, width) for prediction in self.rounds)


@lru_cache(maxsize=2)
def prepare(case: VerifyCase, device: str, leaves: int | None) -> Prepared:
    """Everything that does not depend on the backend; the oracle runs before any of them."""
    scene = Scene.of(case, device)
    data = logical_data(case, device)
    made = candidates(case, scene.ledger, device)
    start = time.perf_counter()
    truth = truth_of(scene, data)
    if scene.device.type == "cuda":
        torch.cuda.synchronize(scene.device)
    seconds = time.perf_counter() - start
    return Prepared(scene, made, data, truth, leaves, seconds)


def truth_of(scene: Scene, data: LogicalData) -> PathResult:
    """The oracle's answer on these data, of all nodes, one request after the other."""
    case = scene.case
    return attend_batch(
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
