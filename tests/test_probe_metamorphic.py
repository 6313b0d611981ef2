"""Related cases: what they are, and that a backend which treats them otherwise is told so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase, Window
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.generate import related
from treeproof.generate.data import logical_data
from treeproof.properties.metamorphic import RELATIONS

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
    def __init__(self) -> None:
        self.stages: Any = load("topology").make()

    def build(self, c: Any) -> VerifyInput:
        x: VerifyInput = self.stages.build(c)
        return x

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return self.stages.attend(x, *tensors)


def failures_of(make: Any, case: VerifyCase = CASE, **capabilities: Any) -> tuple[Failure, ...]:
    backend = describe(
        make, "planted", consumes=load("topology").consumes, numerics=Numerics(p="float32"),
        capabilities=Capabilities(**capabilities),
    )  # fmt: skip
    options = CheckOptions(probes=frozenset({"metamorphic"}))
    return check_case(case, backend, options).failures


class KnowsTheCaseByHeart(Right):
    """Right on the case; three thousandths off wherever anything about it is another."""

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        ledger = SlotLedger.of(CASE)
        homes = [*ledger.row_slots(0), 0, *ledger.row_slots(1)]
        tokens = [11, 12, 13, 14, 15, 0, 11, 13, 14, 12, 15]
        same = x.out_cache_loc.tolist() == homes and x.draft_token.tolist() == tokens
        if same and x.seq_lens.tolist() == [7, 3]:
            return done
        return Attended(out=done.out * 1.003)


def test_every_relation_is_told_by_its_own_kind() -> None:
    assert failures_of(Right) == ()
    failures = failures_of(KnowsTheCaseByHeart)
    assert {f.kind for f in failures} == {relation.kind for relation in RELATIONS}
    assert {(f.identity, f.probe) for f in failures} == {("output", "metamorphic")}


def test_a_case_with_a_seed_of_its_own_has_two_relations_in_turn() -> None:
    told = []
    for seed in range(1, 19):
        objects: list[Any] = []

        class OnlyTheFirst(Right):
            """The first object is right on two requests, and all else is wrong."""

            def __init__(self, objects: list[Any] = objects) -> None:
                super().__init__()
                self.first = not objects
                objects.append(self)

            def attend(self, x: VerifyInput, *tensors: Any) -> Any:
                done = super().attend(x, *tensors)
                right = self.first and len(x.seq_lens) == 2
                return done if right else Attended(out=done.out * 1.003)

        case = msgspec.structs.replace(CASE, seed=seed)
        told.append({f.kind for f in failures_of(OnlyTheFirst, case)})
    assert all(len(kinds) <= 2 for kinds in told)
    assert set().union(*told) == {relation.kind for relation in RELATIONS}


class ChainsStartOneLate(Right):
    """A batch of chains has a builder of its own, whose positions are one too far."""

    def build(self, c: Any) -> VerifyInput:
        x = super().build(c)
        return replace(x, positions=x.positions + 1) if c.topk == 1 else x


def test_the_metadata_of_a_chain_are_held_to_the_letter() -> None:
    failures = failures_of(ChainsStartOneLate)
    assert {f.key for f in failures} == {
        ("position", "wrong-depth"),
        ("position", "padding-position"),
    }
    assert all("where the path comes as a chain" in f.message for f in failures)


class FailsAlone(Right):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        if len(x.seq_lens) == 1:
            raise IndexError("no second request")
        return super().attend(x, *tensors)


def test_what_is_raised_on_a_related_case_says_which() -> None:
    (failure,) = failures_of(FailsAlone)
    assert failure.key == ("contract", "raises")
    assert failure.message.startswith("where the last request comes alone, on the same object: ")


def test_a_relation_outside_the_capabilities_is_not_asked_for() -> None:
    narrow = {
        f.kind for f in failures_of(KnowsTheCaseByHeart, row_order="parent-first", max_topk=2)
    }
    assert "changes-with-branch" not in narrow
    assert "changes-with-rows" not in narrow or narrow


WINDOWED = VerifyCase(
    requests=CASE.requests,
    shape=msgspec.structs.replace(CASE.shape, visibility=Window(width=3), rotary=10_000.0),
    layout=msgspec.structs.replace(CASE.layout, evicted=True),
)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.kind)
@pytest.mark.parametrize("case", [CASE, WINDOWED], ids=["full", "window"])
def test_a_related_case_holds_the_same_tokens_in_the_rows_that_are_paired(
    relation: Any, case: VerifyCase
) -> None:
    made = list(relation.ways(case))
    assert made
    old = logical_data(case)
    for way in made:
        assert way.case != case
        data = way.data(old)
        pairs = way.rows(case)
        assert pairs
        for origin, request in zip(way.origins, way.case.requests, strict=True):
            before = case.requests[origin.request]
            for new, node in enumerate(origin.nodes):
                if node < 0:
                    continue
                # Prefix and path read the same keys in the same order.
                path = [*origin.prefix, *(origin.nodes[n] for n in request.tree.path(new))]
                assert tuple(path) == before.tree.path(node)
        for r, origin in enumerate(way.origins):
            p = case.requests[origin.request].prefix_len
            assert torch.equal(data.k_prefix[r][:p], old.k_prefix[origin.request])
            assert data.v_prefix[r].shape[0] == way.case.requests[r].prefix_len


def test_a_larger_batch_is_larger_and_a_twin_is_of_the_same_size() -> None:
    large = next(related.larger(CASE))
    assert len(large.requests) > len(CASE.requests)
    assert large.num_rows > CASE.num_rows
    assert min(r.prefix_len for r in large.requests) > 3
    (twin,) = related.twin(CASE)
    assert twin.qo_indptr == CASE.qo_indptr
    assert [r.tree.parents for r in twin.requests] != [r.tree.parents for r in CASE.requests]
