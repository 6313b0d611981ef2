"""Softcaps, sinks, ALiBi and quantised caches under every probe: right kernels pass, wrong ones do not.

The kernel reads lists written from the drawn tree and computes logits the long way; what is wrong is
one overridden method or one edited list.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace as with_fields
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import PROBES
from treeproof.contract.inputs import LAYER_FIELDS, Attended, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import Backend, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

FORK = CandidateTree(tokens=(1, 2, 3, 4, 5), parents=(-1, 0, 0, 1, 2))
EVERYTHING = {"softcap": 15.0, "sinks": True, "alibi": True, "kv_dtype": "float8_e4m3fn"}
ABLE = Capabilities(softcap=True, sinks=True, alibi=True, kv_dtypes={None, "float8_e4m3fn", "int8"})
NOT_OF_LISTS = {"stale", "metamorphic"}
"""Probes that launch related cases, whose lists are not written here."""


def case_of(
    dtype: str = "float32", prefix: int = 6, spread: float = 1.0, **shape: Any
) -> VerifyCase:
    request = Request(tree=FORK, row_of_node=(0, 1, 2, 3, 4), prefix_len=prefix)
    given = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 32} | shape
    return VerifyCase(
        requests=(request, request),
        shape=AttentionShape(dtype=dtype, **given),
        layout=KVLayout(page_size=2, num_slots=4 * prefix + 64, order="shuffled"),
        score_spread=spread,
    )


class Kernel:
    """Right. `lists[row]` holds (K slot, V slot, steps back) of each key the row reads."""

    def __init__(self, case: VerifyCase) -> None:
        self.case, self.shape = case, case.shape
        ledger = SlotLedger.of(case)
        self.homes = [slot for b in range(2) for slot in ledger.row_slots(b)]
        self.lists: list[list[tuple[int, int, int]]] = []
        for b, request in enumerate(case.requests):
            for row in range(5):
                path = [request.prefix_len + node for node in FORK.path(row)]
                columns = [*range(request.prefix_len), *path]
                slots = [ledger.columns[b][c] for c in columns]
                self.lists.append([(s, s, len(slots) - 1 - i) for i, s in enumerate(slots)])

    def coded(self, rows: Tensor, scale: Tensor | None) -> Tensor:
        if scale is None:
            return rows
        codes = rows.float() / scale[:, None]
        if self.shape.kv_dtype == "int8":
            return codes.round().to(torch.int8)
        return codes.to(torch.float8_e4m3fn)

    def read(self, cache: Tensor, slots: list[int], head: int, scale: Tensor | None) -> Tensor:
        held = cache[slots, head].float()
        return held if scale is None else held * scale[head]

    def logits(self, x: VerifyInput, products: Tensor, steps: Tensor, head: int) -> Tensor:
        scores = products * self.shape.score_scale
        if self.shape.softcap is not None:
            scores = self.shape.softcap * torch.tanh(scores / self.shape.softcap)
        if x.alibi_slopes is not None:
            scores = scores - x.alibi_slopes[head] * steps
        return scores

    def weights(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        if sink is None:
            return scores.softmax(0)
        return torch.cat((scores, sink[None])).softmax(0)[:-1]

    def lse(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        return scores.logsumexp(0)

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        k_cache[self.homes] = self.coded(k, x.k_scale)
        v_cache[self.homes] = self.coded(v, x.v_scale)
        out, lse = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype), torch.empty(q.shape[:2])
        for row, head in itertools.product(range(len(self.lists)), range(q.shape[1])):
            k_slots, v_slots, back = (list(part) for part in zip(*self.lists[row], strict=True))
            kv_head = head // self.shape.group_size
            products = self.read(k_cache, k_slots, kv_head, x.k_scale) @ q[row, head].float()
            scores = self.logits(x, products, torch.tensor(back), head)
            sink = None if x.sinks is None else x.sinks[head]
            values = self.read(v_cache, v_slots, kv_head, x.v_scale)
            out[row, head] = (self.weights(scores, sink) @ values).to(q.dtype)
            lse[row, head] = self.lse(scores, sink)
        return Attended(out=out, lse=lse)


def checked(
    kernel: type[Kernel] = Kernel,
    case: VerifyCase | None = None,
    consumes: frozenset[str] = frozenset(LAYER_FIELDS),
    capabilities: Capabilities = ABLE,
    **numerics: Any,
) -> Checked:
    case = case or case_of(**EVERYTHING)
    said = {"p": "float32", "mul": "float32", "v": "float32"} | numerics
    backend = Backend(
        name="lists", stages=frozenset({"attend"}), consumes=consumes, capabilities=capabilities,
        numerics=Numerics(**said), requires=(), make=lambda: kernel(case), source="",
    )  # fmt: skip
    return check_case(case, backend, CheckOptions(probes=frozenset(PROBES) - NOT_OF_LISTS))


def kinds(result: Checked) -> set[tuple[str, str]]:
    return {f.key for f in result.failures}


EXTRAS = list(
    itertools.product(
        [None, 15.0, 50.0], [False, True], [False, True], [None, "float8_e4m3fn", "int8"]
    )
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("softcap", "sinks", "alibi", "kv_dtype"), EXTRAS)
def test_a_right_kernel_passes_whatever_its_scores_are_made_of(
    softcap: float | None, sinks: bool, alibi: bool, kv_dtype: str | None, dtype: str
) -> None:
    case = case_of(dtype, softcap=softcap, sinks=sinks, alibi=alibi, kv_dtype=kv_dtype)
    result = checked(case=case)
    assert result.failures == ()
    passed = {(c.identity, c.evidence) for c in result.cells if c.status == "pass"}
    assert {("visibility", "measured"), ("output", "measured"), ("kv", "measured")} <= passed


@pytest.mark.parametrize("scale", [0.05, 1.0])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_a_right_kernel_passes_with_any_scale(scale: float, spread: float) -> None:
    assert checked(case=case_of(spread=spread, scale=scale, **EVERYTHING)).failures == ()


class MaskBeforeCap(Kernel):
    """Every row scores its sibling as well, hidden by -inf: a softcap makes that -cap, no less."""

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        right = [list(own) for own in self.lists]
        for row, own in enumerate(right):
            other = self.homes[(row // 5) * 5 + (2 if row % 5 == 1 else 1)]
            if other not in [slot for slot, *_ in own]:
                self.lists[row] = [*own, (other, other, -1)]
        try:
            return super().attend(x, q, k, v, k_cache, v_cache)
        finally:
            self.lists = right

    def logits(self, x: VerifyInput, products: Tensor, steps: Tensor, head: int) -> Tensor:
        masked = torch.where(steps < 0, -math.inf, products)
        return super().logits(x, masked, steps.clamp(min=0), head)


def test_a_mask_laid_before_the_softcap_lets_hidden_keys_in() -> None:
    assert checked(MaskBeforeCap, case_of(softcap=None)).failures == ()
    for cap in (4.0, 50.0):
        found = checked(MaskBeforeCap, case_of(softcap=cap)).failures
        # Rows 2 and 4 are beside row 1, and row 1 is beside row 2; row 3 is below row 1 and sees it.
        siblings = {(f.request, f.row) for f in found if f.kind == "reads-sibling"}
        assert siblings == {(b, row) for b in (0, 1) for row in (1, 2, 4)}
        # A weight of e**-50 moves no output.
        assert any(f.identity == "output" for f in found) == (cap == 4.0)


class WithoutCap(Kernel):
    def logits(self, x: VerifyInput, products: Tensor, steps: Tensor, head: int) -> Tensor:
        scores = products * self.shape.score_scale
        return scores if x.alibi_slopes is None else scores - x.alibi_slopes[head] * steps


class WithoutSink(Kernel):
    def weights(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        return scores.softmax(0)


class SinkHasAValue(Kernel):
    """The sink's part goes to the last key."""

    def weights(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        kept = super().weights(scores, sink)
        return torch.cat((kept[:-1], 1 - kept[:-1].sum()[None]))


class SinkOfNeighbour(Kernel):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return super().attend(with_fields(x, sinks=x.sinks.roll(1)), *tensors)  # type: ignore[union-attr]


class AlibiByRow(Kernel):
    """Distance from the row's place in the request, and not from its depth."""

    def __init__(self, case: VerifyCase) -> None:
        super().__init__(case)
        depth = FORK.depth
        for row, own in enumerate(self.lists):
            more = row % 5 - depth[row % 5]
            self.lists[row] = [(a, b, back + more if back else 0) for a, b, back in own]


class WithoutAlibi(Kernel):
    def logits(self, x: VerifyInput, products: Tensor, steps: Tensor, head: int) -> Tensor:
        return super().logits(x, products, 0 * steps, head)


class WithoutScales(Kernel):
    def read(self, cache: Tensor, slots: list[int], head: int, scale: Tensor | None) -> Tensor:
        return super().read(cache, slots, head, None)


class ScaleOfNeighbour(Kernel):
    def read(self, cache: Tensor, slots: list[int], head: int, scale: Tensor | None) -> Tensor:
        return super().read(cache, slots, head, None if scale is None else scale.roll(1))


@pytest.mark.parametrize(
    "kernel",
    [
        WithoutCap, WithoutSink, SinkHasAValue, SinkOfNeighbour, AlibiByRow, WithoutAlibi,
        WithoutScales, ScaleOfNeighbour,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_left_out_of_a_logit_shows_in_random_data_alone(
    kernel: type[Kernel], dtype: str
) -> None:
    case = case_of(dtype, spread=8.0, **EVERYTHING)
    result = checked(kernel, case)
    assert ("output", "outside-bound") in kinds(result)
    # Chosen data get a layer that changes nothing: what a row reads is told apart from how.
    assert {f.identity for f in result.failures} == {"output"}


class TruncatedCodes(Kernel):
    def coded(self, rows: Tensor, scale: Tensor | None) -> Tensor:
        return rows if scale is None else (rows.float() / scale[:, None]).trunc().to(torch.int8)


class StoredWithoutScale(Kernel):
    def coded(self, rows: Tensor, scale: Tensor | None) -> Tensor:
        return super().coded(rows, None if scale is None else torch.ones_like(scale))


@pytest.mark.parametrize("kernel", [TruncatedCodes, StoredWithoutScale])
def test_codes_that_are_not_the_nearest_are_found_where_they_are_written(
    kernel: type[Kernel],
) -> None:
    result = checked(kernel, case_of(kv_dtype="int8"))
    assert ("kv", "not-written") in kinds(result)


class KeyOfAnotherSlot(Kernel):
    """One row scores one of its keys and reads the value of another."""

    def __init__(self, case: VerifyCase) -> None:
        super().__init__(case)
        own = self.lists[3]
        (k0, v0, b0), (k1, v1, b1) = own[-1], own[-2]
        self.lists[3] = [*own[:-2], (k0, v1, b1), (k1, v0, b0)]


@pytest.mark.parametrize("kv_dtype", [None, "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("softcap", [None, 15.0, 50.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_from_different_slots_are_named_under_every_cap_and_code(
    kv_dtype: str | None, softcap: float | None, dtype: str
) -> None:
    case = case_of(dtype, softcap=softcap, kv_dtype=kv_dtype)
    found = [f for f in checked(KeyOfAnotherSlot, case).failures if f.kind == "wrong-key"]
    assert {(f.request, f.row) for f in found} == {(0, 3)}
    # The spike names both keys: the row's own and its parent's.
    assert {f.column for f in found} == {6 + 1, 6 + 3}


class OneKeyMore(Kernel):
    def __init__(self, case: VerifyCase) -> None:
        super().__init__(case)
        self.lists[4] = [(self.homes[1], self.homes[1], 1), *self.lists[4]]


@pytest.mark.parametrize(("softcap", "sinks", "alibi", "kv_dtype"), EXTRAS[::5])
def test_a_hidden_key_is_named_whatever_scores_are_made_of(
    softcap: float | None, sinks: bool, alibi: bool, kv_dtype: str | None
) -> None:
    case = case_of("bfloat16", softcap=softcap, sinks=sinks, alibi=alibi, kv_dtype=kv_dtype)
    found = [f for f in checked(OneKeyMore, case).failures if f.identity == "visibility"]
    assert [(f.kind, f.request, f.row, f.column) for f in found] == [("reads-sibling", 0, 4, 7)]


class BaseTwo(Kernel):
    def lse(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        return scores.logsumexp(0) / math.log(2)


class WithSink(Kernel):
    def lse(self, scores: Tensor, sink: Tensor | None) -> Tensor:
        return scores.logsumexp(0) if sink is None else torch.logaddexp(scores.logsumexp(0), sink)


@pytest.mark.parametrize(
    ("kernel", "said"), [(BaseTwo, {"lse_base": "2"}), (WithSink, {"lse_includes_sink": True})]
)
def test_a_log_sum_exp_is_what_it_is_declared_to_be(kernel: type[Kernel], said: Any) -> None:
    declared = replace(ABLE, **said)
    assert checked(kernel, capabilities=declared).failures == ()
    assert kinds(checked(kernel)) == {("output", "wrong-lse")}
    assert kinds(checked(Kernel, capabilities=declared)) == {("output", "wrong-lse")}


@pytest.mark.parametrize("name", LAYER_FIELDS)
def test_a_parameter_that_is_read_and_not_declared_is_told(name: str) -> None:
    result = checked(consumes=frozenset(LAYER_FIELDS) - {name})
    assert ("output", "outside-bound") in kinds(result)
    told = [f.message for f in result.failures if f.kind == "reads-undeclared-input"]
    assert told == [f"outputs depend on {name} not named in consumes"]


class Operand(Kernel):
    """The rows' own keys and values come from the operands, in the dtype of the case."""

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        self.k, self.v = k, v
        self.first = k_cache
        return super().attend(x, q, k, v, k_cache, v_cache)

    def read(self, cache: Tensor, slots: list[int], head: int, scale: Tensor | None) -> Tensor:
        rows = self.k if cache is self.first else self.v
        held = super().read(cache, slots, head, scale)
        for i, slot in enumerate(slots):
            if slot in self.homes:
                held[i] = rows[self.homes.index(slot), head].float()
        return held


def test_operands_of_a_quantised_cache_are_rounded_and_that_is_to_be_declared() -> None:
    case = case_of("bfloat16", prefix=0, kv_dtype="int8")
    declared = replace(ABLE, tree_kv="operand")
    assert checked(Operand, case, capabilities=declared).failures == ()
    undeclared = {("output", "wrong-lse"), ("output", "outside-bound")}
    assert kinds(checked(Operand, case)) == undeclared


@pytest.mark.parametrize("name", ["direct-mask", "cascade", "page-table", "swa-window", "topology"])
@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_the_backends_pass_with_everything_at_once(name: str, kv_dtype: str) -> None:
    case = case_of("float16", rotary=10_000.0, scale=0.3, **EVERYTHING | {"kv_dtype": kv_dtype})
    result = check_case(case, load(name), CheckOptions())
    assert result.failures == ()
    assert ("position", "measured", "pass") in {
        (c.identity, c.evidence, c.status) for c in result.cells
    }


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
@pytest.mark.parametrize("softcap", [None, 15.0])
def test_the_clock_reads_a_wrong_position_under_every_cap_and_code(
    softcap: float | None, kv_dtype: str | None
) -> None:
    right = load("page-table")

    class Late(right.make):  # type: ignore[name-defined,misc]
        def build(self, c: Any) -> VerifyInput:
            x = super().build(c)
            positions = x.positions.clone()
            positions[3] += 1
            return with_fields(x, positions=positions)

    case = case_of(softcap=softcap, kv_dtype=kv_dtype)
    result = check_case(case, with_fields(right, make=Late), CheckOptions())
    measured = [f for f in result.failures if f.identity == "position" and f.evidence == "measured"]
    assert [(f.request, f.row) for f in measured] == [(0, 3)]
