"""Each identity by each evidence: a fault that this check alone sees, gone when it is switched off.

The right stages are the mask backend's; every fault wraps one of them at its boundary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.failure import IDENTITIES, Evidence, Identity
from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.contract.registry import Backend, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.probes.clock import PERIOD
from treeproof.properties.traversal import predictions

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
    """The mask backend's stages, each working from what its own build made."""

    def __init__(self) -> None:
        self.stages: Any = load("direct-mask").make()

    def build(self, c: Any) -> VerifyInput:
        self.x: VerifyInput = self.stages.build(c)
        return self.declare(self.x)

    def declare(self, x: VerifyInput) -> VerifyInput:
        return x

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return self.stages.attend(self.x, *tensors)

    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        return self.stages.accept(self.x, target)

    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        return self.stages.commit(self.x, accepted, k, v)


class TokensSwappedInTheTable(Right):
    def declare(self, x: VerifyInput) -> VerifyInput:
        tokens = x.draft_token.clone()
        tokens[[3, 4]] = tokens[[4, 3]]
        return replace(x, draft_token=tokens)


class OtherTokensEmitted(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        tokens = done.tokens.clone()
        tokens[:, 0] = torch.where(done.accept_len > 1, tokens[:, 0] + 1, tokens[:, 0])
        return replace(done, tokens=tokens)


class PaddingHasAPosition(Right):
    def declare(self, x: VerifyInput) -> VerifyInput:
        positions = x.positions.clone()
        positions[5] = 12
        return replace(x, positions=positions)


class QueryTurnedOneStepOn(Right):
    def attend(self, x: VerifyInput, q: Any, *tensors: Any) -> Any:
        angle = 2 * math.pi / PERIOD
        half = q.shape[2] // 2
        turned = q.clone()
        turned[2, :, 0] = q[2, :, 0] * math.cos(angle) - q[2, :, half] * math.sin(angle)
        turned[2, :, half] = q[2, :, 0] * math.sin(angle) + q[2, :, half] * math.cos(angle)
        return super().attend(x, turned, *tensors)


def _with_a_leak(x: VerifyInput) -> VerifyInput:
    """Row 2 of request 0 is shown row 1, its sibling."""
    assert x.custom_mask is not None
    mask = x.custom_mask.clone()
    rows, prefix = 6, 7
    mask[2 * (prefix + rows) + prefix + 1] = True
    return replace(x, custom_mask=mask)


class MaskTableLeaks(Right):
    def declare(self, x: VerifyInput) -> VerifyInput:
        return _with_a_leak(x)


class KernelLeaks(Right):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = self.stages.attend(_with_a_leak(self.x), *tensors)
        return replace(done, declared={})


class SiblingLinkCut(Right):
    def declare(self, x: VerifyInput) -> VerifyInput:
        assert x.retrieve_next_sibling is not None
        links = x.retrieve_next_sibling.clone()
        links[0, 1] = -1
        return replace(x, retrieve_next_sibling=links)


class AcceptStopsOneEarly(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        length = (done.accept_len - 1).clamp(min=1)
        step = torch.arange(done.accept_index.shape[1])
        index = torch.where(step < length[:, None], done.accept_index, -1)
        return replace(done, accept_index=index, accept_len=length)


class SlotsSwappedInTheTable(Right):
    def declare(self, x: VerifyInput) -> VerifyInput:
        slots = x.out_cache_loc.clone()
        slots[[1, 2]] = slots[[2, 1]]
        return replace(x, out_cache_loc=slots)


class PathNotCompacted(Right):
    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        return super().commit(x, accepted, k.clone(), v.clone())


FAULTS: list[tuple[Identity, Evidence, type[Right]]] = [
    ("candidate", "declared", TokensSwappedInTheTable),
    ("candidate", "measured", OtherTokensEmitted),
    ("position", "declared", PaddingHasAPosition),
    ("position", "measured", QueryTurnedOneStepOn),
    ("visibility", "declared", MaskTableLeaks),
    ("visibility", "measured", KernelLeaks),
    ("traversal", "declared", SiblingLinkCut),
    ("traversal", "measured", AcceptStopsOneEarly),
    ("kv", "declared", SlotsSwappedInTheTable),
    ("kv", "measured", PathNotCompacted),
]


def backend_of(make: type[Right]) -> Backend:
    return Backend(
        name="planted",
        stages=frozenset({"build", "attend", "accept", "commit"}),
        consumes=load("direct-mask").consumes,
        capabilities=Capabilities(),
        numerics=Numerics(p="float32"),
        requires=(),
        make=make,
        source="",
    )


def failed(make: type[Right], *without: tuple[Identity, Evidence]) -> set[tuple[str, str]]:
    options = CheckOptions(identities=frozenset(IDENTITIES), without=frozenset(without))
    checked = check_case(CASE, backend_of(make), options)
    return {(c.identity, c.evidence) for c in checked.cells if c.status == "fail"}


def test_the_right_stages_pass_all_ten_checks() -> None:
    checked = check_case(CASE, backend_of(Right), CheckOptions())
    passed = {(c.identity, c.evidence) for c in checked.cells if c.status == "pass"}
    assert checked.failures == ()
    assert {(i, e) for i, e, _ in FAULTS} <= passed


@pytest.mark.parametrize(
    ("identity", "evidence", "fault"), FAULTS, ids=lambda v: getattr(v, "__name__", v)
)
def test_a_fault_is_seen_by_its_own_check_and_passes_only_when_that_is_switched_off(
    identity: Identity, evidence: Evidence, fault: type[Right]
) -> None:
    assert failed(fault) == {(identity, evidence)}
    assert failed(fault, (identity, evidence)) == set()
    others = [(i, e) for i, e, _ in FAULTS if (i, e) != (identity, evidence)]
    assert failed(fault, *others) == {(identity, evidence)}


def test_requests_of_one_row_each_have_their_lists_read_as_lists_of_requests() -> None:
    root = Request(tree=CandidateTree(tokens=(7,), parents=(-1,)), row_of_node=(0,), prefix_len=5)
    case = VerifyCase(requests=(root, root), shape=CASE.shape, layout=CASE.layout)
    for name in ("reference", "direct-mask", "cascade", "page-table", "swa-window", "topology"):
        checked = check_case(case, load(name), CheckOptions())
        assert checked.failures == (), name
        assert any(c.identity == "visibility" and c.status == "pass" for c in checked.cells), name


def test_leaves_are_walked_one_by_one_and_a_limit_spreads_over_the_tree() -> None:
    star = CandidateTree(tokens=tuple(range(25)), parents=(-1, *[0] * 24))
    request = Request(tree=star, row_of_node=tuple(range(25)), prefix_len=3)
    case = VerifyCase(requests=(request, CASE.requests[1]), shape=CASE.shape, layout=CASE.layout)
    every = [p.rows[0] for p in predictions(case, None)]
    assert every[:-1] == [(0, leaf) for leaf in range(1, 25)]
    spread = predictions(case, 6)
    assert [p.rows[0][-1] for p in spread[:-1]] == [1, 5, 9, 13, 17, 21]
    # The smaller tree has two leaves, rows 2 and 4, and walks them in turn.
    assert [p.rows[1][-1] for p in spread[:-1]] == [2, 4, 2, 4, 2, 4]


def test_the_oracle_is_paid_for_once_a_case() -> None:
    case = VerifyCase(requests=CASE.requests, shape=CASE.shape, layout=CASE.layout, seed=77)
    first, second = (
        check_case(case, load(name), CheckOptions()).seconds for name in ("direct-mask", "topology")
    )
    assert first["oracle"] > 0
    assert "oracle" not in second
