"""A small model around attend: what only a model sees, and that a right backend passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
import torch
from mask_stages import MaskStages

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, Full, KVLayout, Request, VerifyCase, Window
from treeproof.contract.event import Checked
from treeproof.contract.failure import PROBES
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.oracles.target import TargetResult
from treeproof.oracles.target_errors import Errors
from treeproof.properties.layers import judge_end
from treeproof.properties.scene import Scene
from treeproof.testing.assertion import assert_tree_attention

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=7, pad_rows=1),
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=3),
    ),
    shape=AttentionShape(
        num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=8, rotary=100.0,
        visibility=Window(width=3),
    ),
    layout=KVLayout(page_size=4, num_slots=64, order="shuffled"),
    seed=3,  # the turn of the probe
)  # fmt: skip
ALONE = CheckOptions(probes=frozenset({"model"}))


def with_shape(**fields: Any) -> VerifyCase:
    return msgspec.structs.replace(CASE, shape=msgspec.structs.replace(CASE.shape, **fields))


def planned(make: Any) -> Backend:
    right = load("direct-mask")
    return describe(
        make, "planned", consumes=right.consumes | {"request_slots", "req_to_token", "seq_lens"},
        numerics=Numerics(p="float32"), capabilities=Capabilities(),
    )  # fmt: skip


def statuses(checked: Checked) -> list[str]:
    return [c.status for c in checked.cells if (c.identity, c.stage) == ("output", "attend")]


@dataclass
class State:
    x: VerifyInput
    caches: Any = None
    layers: int = 0


class Planned(MaskStages):
    """Plans once a step; `attend` is then called once a layer with what was planned."""

    def plan(self, x: VerifyInput) -> State:
        return State(x)

    def attend(self, state: State, *tensors: Any) -> Attended:
        state.layers += 1
        return self.layer(state, *tensors)

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        return super().attend(state.x, q, k, v, *caches)


class ReadsTheFirstCache(Planned):
    """The plan holds on to the cache that it saw first; writes go where they should."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        done = super().layer(state, q, k, v, *caches)
        state.caches = state.caches or caches
        copies = [cache.clone() for cache in state.caches]
        return replace(done, out=super().layer(state, q, k, v, *copies).out)


class WritesTheLastCache(Planned):
    """A layer's rows go to the cache of the layer before; of the first, to its own."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        last, state.caches = state.caches or caches, caches
        right = [cache.clone() for cache in caches]
        done = super().layer(state, q, k, v, *right)
        slots = state.x.out_cache_loc[state.x.out_cache_loc >= 0]
        for cache, filled in zip(last, right, strict=True):
            cache[slots] = filled[slots]
        return done


class WindowOfTheFirstLayerAlone(Planned):
    """The window is used up by the first layer that has one."""

    def layer(self, state: State, *tensors: Any) -> Attended:
        if state.layers > 1 and state.x.shape.window is not None:
            shape = msgspec.structs.replace(state.x.shape, visibility=Window(width=99))
            state.x = replace(state.x, shape=shape)
        return super().layer(state, *tensors)


FAULTS = {
    ReadsTheFirstCache: {("output", "wrong-layer")},
    WritesTheLastCache: {("kv", "not-written"), ("kv", "other-layer-written")},
    WindowOfTheFirstLayerAlone: {("output", "wrong-layer")},
}


@pytest.mark.parametrize("make", FAULTS)
def test_what_one_layer_does_to_another_is_seen_by_the_model_alone(make: Any) -> None:
    found = check_case(CASE, planned(make), CheckOptions()).failures
    assert {f.key for f in found} == FAULTS[make]
    assert {f.probe for f in found} == {"model"}
    others = CheckOptions(probes=frozenset(PROBES) - {"model"})
    assert check_case(CASE, planned(make), others).failures == ()


class TakesOneLayerAPlan(Planned):
    def layer(self, state: State, *tensors: Any) -> Attended:
        if state.layers > 1:
            raise RuntimeError("the plan is spent")
        return super().layer(state, *tensors)


def test_what_is_raised_in_a_later_layer_is_told_with_where() -> None:
    (found,) = check_case(CASE, planned(TakesOneLayerAPlan), CheckOptions()).failures
    assert found.key == ("contract", "raises")
    assert found.message.startswith("as attention of a small model: attend raised RuntimeError")


def test_who_asks_for_writes_alone_is_told_of_writes() -> None:
    alone = replace(ALONE, identities=frozenset({"kv"}))
    found = check_case(CASE, planned(WritesTheLastCache), alone).failures
    assert {f.key for f in found} == FAULTS[WritesTheLastCache]


@pytest.mark.parametrize("make", [ReadsTheFirstCache, WindowOfTheFirstLayerAlone])
def test_the_layer_that_is_wrong_is_named(make: Any) -> None:
    told = {f.message.partition(":")[0] for f in check_case(CASE, planned(make), ALONE).failures}
    # Layer 1 is full, so of another kind, with a plan of its own; layer 0 is the first of its kind.
    assert told == {"in layer 2, whose window is 3"}


@pytest.mark.parametrize("case", [
    CASE,
    with_shape(dtype="bfloat16"),
    with_shape(rotary=None, visibility=Full()),
], ids=["windowed", "bfloat16", "nothing turned"])  # fmt: skip
@pytest.mark.parametrize("name", ["planned", "cascade", "page-table"])
def test_a_right_backend_passes_layer_by_layer_and_at_the_end(name: str, case: VerifyCase) -> None:
    backend = planned(Planned) if name == "planned" else load(name)
    checked = check_case(case, backend, ALONE)
    assert checked.failures == ()
    assert "pass" in statuses(checked)


class TokensOfTheRowBefore(Planned):
    """What the model is fed is not what the batch says; single launches see no tokens."""

    def build(self, c: Any) -> VerifyInput:
        x = super().build(c)
        tokens = x.draft_token.clone()
        tokens[2] = tokens[1]
        return replace(x, draft_token=tokens)


def test_rows_that_are_fed_wrong_tokens_are_right_in_every_layer_and_wrong_at_the_end() -> None:
    found = check_case(CASE, planned(TokensOfTheRowBefore), ALONE).failures
    # Row 2 and those below it: row 4 hangs on it.
    assert {(f.kind, f.request, f.row) for f in found} == {
        ("wrong-logits", 0, 2), ("wrong-logits", 0, 4)
    }  # fmt: skip


def test_what_bfloat16_does_in_attention_is_more_than_float32_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("treeproof.engine.checks.model.errors_of", lambda *given: Errors())
    found = check_case(with_shape(dtype="bfloat16"), load("direct-mask"), ALONE).failures
    assert {f.kind for f in found} == {"wrong-logits"}
    assert check_case(CASE, load("direct-mask"), ALONE).failures == ()


def test_a_choice_that_rounding_leaves_open_is_a_tie_and_no_other() -> None:
    case = msgspec.structs.replace(CASE, requests=CASE.requests[:1])
    scene, limit = Scene.of(case), torch.full((5, 1), 0.01, dtype=torch.float64)
    exact = torch.zeros(5, 3, dtype=torch.float64)
    exact[:, 1] = 1.0
    exact[0, 2], exact[4, 2] = 0.995, 0.97
    logits = exact[[0, 1, 2, 3, 4, 4]].clone()  # one padded row, which is free
    logits[0, 2] += 0.008
    assert judge_end(scene, TargetResult(exact, limit), logits) == ([], 1)
    logits[4, 2] += 0.04
    (wrong,), ties = judge_end(scene, TargetResult(exact, limit), logits)
    assert (wrong.kind, wrong.row, ties) == ("wrong-logits", 4, 1)


@pytest.mark.parametrize("seed", [0, 4, 18])
def test_only_one_case_in_sixteen_has_time_for_it(seed: int) -> None:
    other = msgspec.structs.replace(CASE, seed=seed)
    assert check_case(other, planned(ReadsTheFirstCache), ALONE).failures == ()
    nightly = replace(ALONE, profile="nightly")
    assert check_case(other, planned(ReadsTheFirstCache), nightly).failures


def test_a_function_that_is_made_for_one_layer_is_not_tried_in_others() -> None:
    """Its window is its own: in a full layer it would be wrong."""
    stages, made = MaskStages(), AttentionShape(
        num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16, visibility=Window(width=3)
    )  # fmt: skip

    def attend(x: VerifyInput, *tensors: Any) -> Attended:
        return stages.attend(replace(x, shape=msgspec.structs.replace(made)), *tensors)

    assert_tree_attention(
        attend, parents=[-1, 0, 0], prefix=7, window=3, num_q_heads=2, num_kv_heads=1, head_dim=16,
        seed=3, numerics=Numerics(p="float32"),
    )  # fmt: skip
