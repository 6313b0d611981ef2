"""Each probe by a fault that it alone sees: found while it is on, and gone when it is off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.failure import PROBES, Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=7, pad_rows=1),
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=4, num_slots=64, order="shuffled"),
)


class Right:
    """The stages of the mask backend; each fault changes one of them."""

    case = CASE

    def __init__(self) -> None:
        self.stages: Any = load("direct-mask").make()

    def build(self, c: Any) -> VerifyInput:
        x: VerifyInput = self.stages.build(c)
        return x

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return self.stages.attend(x, *tensors)

    def accept(self, x: VerifyInput, target: Any) -> Any:
        return self.stages.accept(x, target)

    def commit(self, x: VerifyInput, accepted: Any, k: Any, v: Any) -> Any:
        return self.stages.commit(x, accepted, k, v)


class PositionsBufferOfTheFirstBatch(Right):
    """Positions are kept in one buffer, made for the largest batch, and filled from its end."""

    kept: Any = None

    def build(self, c: Any) -> VerifyInput:
        x = super().build(c)
        if self.kept is None or len(self.kept) < len(x.positions):
            self.kept = x.positions.clone()
        self.kept[-len(x.positions) :] = x.positions
        return replace(x, positions=self.kept[: len(x.positions)].clone())


class LooksOneColumnFurther(Right):
    """The last bit of an output hangs on the table's cell after a request's last column."""

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        columns = x.seq_lens + 5
        if bool((x.req_to_token[x.request_slots, columns] > 0).any()):
            done.out[0, 0, 0] = torch.nextafter(done.out[0, 0, 0], done.out.new_tensor(9.0))
        return done


class LosesARaceOnceInSix(Right):
    """Of equal launches in a row the sixth has another last bit."""

    last: Any = None
    run = 0

    def attend(self, x: VerifyInput, q: Any, *tensors: Any) -> Any:
        done = super().attend(x, q, *tensors)
        self.run = self.run + 1 if self.last is not None and torch.equal(self.last, q) else 0
        self.last = q.clone()
        if self.run == 5:
            done.out[0, 0, 0] = torch.nextafter(done.out[0, 0, 0], done.out.new_tensor(9.0))
        return done


FAULTS: dict[str, tuple[type[Right], tuple[str, str]]] = {
    "tails": (LooksOneColumnFurther, ("contract", "depends-on-tail")),
    "metamorphic": (LosesARaceOnceInSix, ("contract", "not-repeatable")),
    "stale": (PositionsBufferOfTheFirstBatch, ("position", "stale-position")),
}


def backend_of(make: type[Right]) -> Backend:
    right = load("direct-mask")
    return describe(
        make, "planted", consumes=right.consumes | {"request_slots", "req_to_token", "seq_lens"}, capabilities=Capabilities(),
        numerics=Numerics(p="float32"),
    )  # fmt: skip


def failures_of(make: type[Right], probes: frozenset[str]) -> tuple[Failure, ...]:
    return check_case(make.case, backend_of(make), CheckOptions(probes=probes)).failures


def test_the_right_stages_pass_all_probes() -> None:
    assert failures_of(Right, frozenset(PROBES)) == ()


@pytest.mark.parametrize("probe", FAULTS)
def test_a_probe_alone_sees_its_fault(probe: str) -> None:
    make, key = FAULTS[probe]
    every = failures_of(make, frozenset(PROBES))
    assert key in {f.key for f in every}
    assert {f.probe for f in every} == {probe}
    assert failures_of(make, frozenset(PROBES) - {probe}) == ()


def test_a_probe_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown probes sonar: accepted are declared,"):
        CheckOptions(probes=frozenset({"sonar", "walk"}))
