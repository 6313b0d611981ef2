"""Each probe by a fault that it alone sees: found while it is on, and gone when it is off."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from mask_stages import MaskStages

from treeproof.backends.tiny_engine import TinyEngine
from treeproof.backends.topology import Topology
from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.failure import PROBES, Failure
from treeproof.contract.inputs import Accepted, Attended, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.sampling import Sampling
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.probes.chorus import group_of_slots
from treeproof.properties.probes.clock import PERIOD
from treeproof.properties.reading import prefix_edges
from treeproof.properties.scene import Scene

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=7, pad_rows=1),
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=4, num_slots=64, order="shuffled"),
)


LONG = VerifyCase(
    requests=(Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=8000),),
    shape=AttentionShape(
        num_q_heads=4, num_kv_heads=1, head_dim=64, v_head_dim=64, dtype="bfloat16"
    ),
    layout=KVLayout(page_size=4, num_slots=8192, order="shuffled"),
)
"""Where one key more or less is nothing to the bound."""

DEEP = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=tuple(range(800)), parents=tuple(range(-1, 799))),
            row_of_node=tuple(range(800)),
            prefix_len=8,
        ),
    ),
    shape=LONG.shape,
    layout=KVLayout(page_size=4, num_slots=1024),
    mask=MaskLayout(mode=MaskMode.QLEN_ONLY),
    seed=20,  # not 0, by which a case does everything
)


def _of_equal_code() -> tuple[VerifyCase, tuple[int, int]]:
    """LONG with a seed by which two prefix keys stay in one group of the chorus, and these keys."""
    for seed in range(64):
        case = msgspec.structs.replace(LONG, seed=seed)
        scene = Scene.of(case)
        group = [group_of_slots(scene, 8, drawing)[:, 0].tolist() for drawing in range(2)]
        edges = prefix_edges(case, 0)
        for a, b in itertools.combinations(edges, 2):
            first, second = scene.ledger.columns[0][a], scene.ledger.columns[0][b]
            if all(own[first] == own[second] for own in group):
                return case, (a, b)
    raise AssertionError("no seed has two such keys")


class Right(MaskStages):
    """The stages of the mask backend; each fault changes one of them."""

    case = CASE
    profile = "quick"
    numerics = Numerics(p="float32")


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


class Coarse(Right):
    """As most kernels are: weights in bfloat16, and no log-sum-exp, which would tell more."""

    case = LONG
    numerics = Numerics()

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return Attended(out=super().attend(x, *tensors).out)


class TokensSwappedInTheTable(Right):
    """The table that is handed on; acceptance looks into the builder's own."""

    def build(self, c: Any) -> VerifyInput:
        self.own = super().build(c)
        tokens = self.own.draft_token.clone()
        if len(tokens) > 4:
            tokens[[3, 4]] = tokens[[4, 3]]
        return replace(self.own, draft_token=tokens)

    def accept(self, x: VerifyInput, target: Any) -> Any:
        return super().accept(self.own, target)


class OutputsThreeTenThousandthsTooLarge(Right):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        return replace(done, out=done.out * 1.0003)


class LooksAtWhatLayThere(Right):
    """A row's slot is looked at before it is written, and large numbers there change the last bit."""

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        loud = bool((tensors[3][x.out_cache_loc[0]].abs() > 100).any())
        done = super().attend(x, *tensors)
        if loud:
            done.out[0, 0, 0] = torch.nextafter(done.out[0, 0, 0], done.out.new_tensor(9.0))
        return done


class OneAncestorInEightHundredIsMissed(Coarse):
    """Too little for the bound of bfloat16, and for a mean over a hundred voices."""

    case = DEEP

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        assert x.custom_mask is not None
        rows = len(x.draft_token)
        if rows != 800:
            return super().attend(x, *tensors)
        mask = x.custom_mask.clone()
        mask[790 * rows + 300] = False
        return super().attend(replace(x, custom_mask=mask), *tensors)


class AFarKeyIsReadTwiceAndItsNeighbourNever(Coarse):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        table = x.req_to_token.clone()
        if int(x.seq_lens[0]) > 1000:
            row = int(x.request_slots[0])
            table[row, 700] = table[row, 701]
        return super().attend(replace(x, req_to_token=table), *tensors)


class KeysAreSwapped(Coarse):
    """K of two prefix keys: which value is read with which key is wrong, and no value is lost."""

    columns = (0, 7999)

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        k_cache = tensors[3]
        if int(x.seq_lens[0]) < 1000:
            return super().attend(x, *tensors)
        slots = x.req_to_token[x.request_slots[0]][list(self.columns)]
        k_cache[slots] = k_cache[slots.flip(0)]
        done = super().attend(x, *tensors)
        k_cache[slots] = k_cache[slots.flip(0)]
        return done


class KeysOfEqualCodeAreSwapped(KeysAreSwapped):
    """Two keys that share a group of the chorus in both drawings."""

    case, columns = _of_equal_code()
    profile = "nightly"


class QueryTurnedOneStepOn(Coarse):
    def attend(self, x: VerifyInput, q: Any, *tensors: Any) -> Any:
        angle, half = 2 * math.pi / PERIOD, q.shape[2] // 2
        turned = q.clone()
        a, b = q[2, :, 0].float(), q[2, :, half].float()
        turned[2, :, 0] = a * math.cos(angle) - b * math.sin(angle)
        turned[2, :, half] = b * math.cos(angle) + a * math.sin(angle)
        return super().attend(x, turned, *tensors)


class AcceptStopsOneEarly(Right):
    def accept(self, x: VerifyInput, target: Any) -> Any:
        done = super().accept(x, target)
        length = (done.accept_len - 1).clamp(min=1)
        step = torch.arange(done.accept_index.shape[1])
        index = torch.where(step < length[:, None], done.accept_index, -1)
        return replace(done, accept_index=index, accept_len=length)


class SamplesByTheNextCoin(Topology):
    """The last token is drawn by another request's coin, where all numbers are sound: where one
    request's are not, the probe of malformed input would see that it reaches the other."""

    case = CASE
    profile = "quick"
    numerics = Numerics(p="float32")
    consumes = load("topology").consumes

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        coins, p = given.final_coins, given.target_probs
        sound = bool(((coins >= 0) & (coins < 1)).all() & (p >= 0).all() & p.isfinite().all())
        sound = sound and bool(
            ((given.coins >= 0) & (given.coins < 1)).all() & ((p.sum(-1) - 1).abs() < 0.5).all()
        )
        return super().sample(x, replace(given, final_coins=coins.roll(1) if sound else coins))


class CoinsOfTheFirst3Requests(SamplesByTheNextCoin):
    """Later requests draw by them over again."""

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        again = torch.arange(len(given.final_coins)) % 3
        return Topology.sample(self, x, replace(given, final_coins=given.final_coins[again]))


class PathNotCompacted(Right):
    def commit(self, x: VerifyInput, accepted: Any, k: Any, v: Any) -> Any:
        return super().commit(x, accepted, k.clone(), v.clone())


class EngineReadsInRowOrder(TinyEngine):
    """A whole engine that takes every tree for a chain."""

    case = CASE
    profile = "quick"

    def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
        table = x.retrieve_parent_token
        assert table is not None
        chain = torch.where(table >= 0, torch.arange(table.shape[1]) - 1, table)
        return super().forward(replace(x, retrieve_parent_token=chain), prefix_tokens)


FAULTS: dict[str, tuple[Any, tuple[str, str]]] = {
    "declared": (TokensSwappedInTheTable, ("candidate", "wrong-token")),
    "random": (OutputsThreeTenThousandthsTooLarge, ("output", "outside-bound")),
    "poison": (LooksAtWhatLayThere, ("kv", "unowned-influences")),
    "tomography": (OneAncestorInEightHundredIsMissed, ("visibility", "misses-ancestor")),
    "checksum": (AFarKeyIsReadTwiceAndItsNeighbourNever, ("visibility", "misses-prefix")),
    "chorus": (KeysAreSwapped, ("visibility", "wrong-key")),
    "spike": (KeysOfEqualCodeAreSwapped, ("visibility", "wrong-key")),
    "clock": (QueryTurnedOneStepOn, ("position", "wrong-rotation")),
    "walk": (AcceptStopsOneEarly, ("traversal", "wrong-walk")),
    "law": (CoinsOfTheFirst3Requests, ("traversal", "wrong-law")),
    "sample": (SamplesByTheNextCoin, ("traversal", "wrong-draw")),
    "commit": (PathNotCompacted, ("kv", "path-not-compacted")),
    "influence": (EngineReadsInRowOrder, ("visibility", "reads-sibling")),
    "tails": (LooksOneColumnFurther, ("contract", "depends-on-tail")),
    "metamorphic": (LosesARaceOnceInSix, ("contract", "not-repeatable")),
    "stale": (PositionsBufferOfTheFirstBatch, ("position", "stale-position")),
}

ELSEWHERE = {
    "captured",
    "process",
    "finish",
    "draft",
    "kernels",
    "guard",
    "malformed",
    "memory",
    "merge",
    "model",
    "rounds",
}
"""Probes whose faults stand in tests of their own."""


def backend_of(make: Any) -> Backend:
    if issubclass(make, TinyEngine):
        capabilities = Capabilities(vocab_size=TinyEngine.model.vocab_size)
        return describe(make, "planted", stages={"forward"}, capabilities=capabilities)
    consumes = getattr(make, "consumes", load("direct-mask").consumes)
    return describe(
        make, "planted", consumes=consumes, capabilities=Capabilities(), numerics=make.numerics
    )


def failures_of(make: Any, probes: frozenset[str]) -> tuple[Failure, ...]:
    options = CheckOptions(probes=probes, profile=make.profile)
    return check_case(make.case, backend_of(make), options).failures


def test_every_probe_has_a_fault() -> None:
    assert set(FAULTS) | ELSEWHERE == set(PROBES)


@pytest.mark.parametrize("case", [CASE, LONG, DEEP], ids=["case", "long", "deep"])
def test_the_right_stages_pass_all_probes(case: VerifyCase) -> None:
    class RightOnThisOne(Right):
        pass

    RightOnThisOne.case = case
    assert failures_of(RightOnThisOne, frozenset(PROBES)) == ()


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
