"""One capture, many batches. On the CPU a launch is planned once and run on what is copied in later."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from interpreter_worker import Ask, interpreter
from triton_captured import captured_kinds

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import Attended, Candidates, VerifyInput
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.captured import frozen
from treeproof.faults.smallest import CHAIN, FORK, case, request
from treeproof.generate.captured import batches
from treeproof.properties.probes.capture import host_decisions

CASE = case(
    request((-1, 0, 0, 1, 2), prefix=7, pad_rows=1),
    request(FORK, prefix=3),
    window=6,
    page_size=4,
    heads=(4, 2),
    layout={"order": "shuffled"},
)
ALONE = CheckOptions(probes=frozenset({"captured"}))


def kinds(backend: Backend, of: Any = CASE) -> set[tuple[str, str]]:
    return {failure.key for failure in check_case(of, backend, ALONE).failures}


class Counting:
    """A right backend whose plans and launches are counted."""

    plans = launches = 0

    def __init__(self) -> None:
        self._right = load("page-table").make()

    def build(self, c: Candidates) -> VerifyInput:
        return self._right.build(c)

    def plan(self, x: VerifyInput) -> VerifyInput:
        Counting.plans += 1
        return x

    def attend(self, x: VerifyInput, *tensors: Any) -> Attended:
        Counting.launches += 1
        return self._right.attend(x, *tensors)


def described(make: Any, name: str = "page-table", **changed: Any) -> Backend:
    """An implementation as the backend of ours that it rests on."""
    right = load(name)
    able = msgspec.structs.replace(right.capabilities, **changed)
    return describe(
        make, "mine", consumes=right.consumes, capabilities=able, numerics=right.numerics
    )


def test_a_launch_runs_on_other_batches_than_it_was_planned_for() -> None:
    Counting.plans = Counting.launches = 0
    assert kinds(described(Counting)) == set()
    # Fresh ones on two batches; then one plan, that batch, and both others.
    assert (Counting.plans, Counting.launches) == (3, 5)


def test_who_does_not_say_that_it_is_capturable_is_not_asked() -> None:
    Counting.launches = 0
    assert kinds(described(Counting, capturable=False)) == set()
    assert Counting.launches == 0
    assert not Capabilities().capturable


@pytest.mark.parametrize("name", ["page-table", "sdpa-direct-mask"])
@pytest.mark.parametrize(
    "one", [CASE, case(request()), case(request(CHAIN, prefix=2), request(CHAIN), window=2)]
)
def test_right_backends_pass(name: str, one: Any) -> None:
    assert check_case(one, load(name), CheckOptions()).failures == ()


FROZEN = {
    "page-table": {
        "cache_seqlens": ("visibility", "captured-lengths"),
        "page_table": ("visibility", "captured-tables"),
        "out_cache_loc": ("kv", "captured-slots"),
    },
    "sdpa-direct-mask": {
        "custom_mask": ("visibility", "captured-mask"),
        "mask_indptr": ("visibility", "captured-mask"),
        "kv_indptr": ("visibility", "captured-tables"),
        "kv_indices": ("visibility", "captured-tables"),
        "positions": ("position", "captured-positions"),
        "out_cache_loc": ("kv", "captured-slots"),
    },
}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, fields in FROZEN.items() for field in fields]
)
def test_each_field_that_keeps_the_captured_batch_is_named(name: str, field: str) -> None:
    checked = check_case(CASE, frozen(field)(load(name)), CheckOptions())
    assert {failure.key for failure in checked.failures} == {FROZEN[name][field]}
    (failure,) = checked.failures
    assert f"attend goes on with {field} of the first" in failure.message
    assert (failure.stage, failure.probe) == ("attend", "captured")


@pytest.mark.parametrize("name", FROZEN)
def test_a_field_that_attend_does_not_read_may_be_kept(name: str) -> None:
    unread = sorted(load(name).consumes - FROZEN[name].keys() - {"qo_indptr"})
    there = [field for field in unread if field not in ("sinks", "alibi_slopes")]
    assert kinds(frozen(*there)(load(name))) == set()


def test_the_row_that_differs_is_named_where_it_is_one_of_the_case() -> None:
    (failure,) = check_case(CASE, frozen("page_table")(load("page-table")), ALONE).failures
    assert (failure.request, failure.row) == (0, 0)


class Refreshed(Counting):
    """Keeps its tables in memory of its own, and brings them up to date before each replay."""

    def plan(self, x: VerifyInput) -> VerifyInput:
        return replace(x, page_table=x.page_table.clone(), cache_seqlens=x.cache_seqlens.clone())

    def replan(self, state: VerifyInput, x: VerifyInput) -> None:
        state.page_table.copy_(x.page_table)
        state.cache_seqlens.copy_(x.cache_seqlens)


class HalfRefreshed(Refreshed):
    def replan(self, state: VerifyInput, x: VerifyInput) -> None:
        state.page_table.copy_(x.page_table)


def test_what_is_planned_anew_before_each_replay_is_right_if_all_of_it_is() -> None:
    assert kinds(described(Refreshed)) == set()
    assert kinds(described(HalfRefreshed)) == {("visibility", "captured-lengths")}
    made = Refreshed()
    assert kinds(described(made)) == set()  # an object of somebody's keeps its method


class CopiesWhatIsReal(Counting):
    """Tables of its own, of which it refreshes only as much as the next batch has rows."""

    def plan(self, x: VerifyInput) -> VerifyInput:
        return replace(x, out_cache_loc=x.out_cache_loc.clone())

    def replan(self, state: VerifyInput, x: VerifyInput) -> None:
        real = x.out_cache_loc != x.kv.pad_slot
        state.out_cache_loc[real] = x.out_cache_loc[real]


def test_rows_of_padding_that_keep_what_was_there_before_them_are_named() -> None:
    all_real = case(request(FORK, prefix=3), request(CHAIN, prefix=2))
    (failure,) = check_case(all_real, described(CopiesWhatIsReal), ALONE).failures
    assert failure.key == ("kv", "captured-slots")
    assert "out_cache_loc in padded rows of the one before" in failure.message


class Multiplied(Counting):
    """Something of the captured batch that is no field of its input."""

    def plan(self, x: VerifyInput) -> Any:
        return x, int(x.seq_lens.sum())

    def attend(self, state: Any, q: Any, *tensors: Any) -> Attended:
        return super().attend(state[0], q * (1 + state[1] / 100), *tensors)


def test_what_no_field_of_an_earlier_batch_explains_is_said_so() -> None:
    backend = described(Multiplied)
    (failure,) = check_case(CASE, backend, ALONE).failures
    # Its outputs are wrong on any batch, so that they must not be judged here.
    assert failure.key == ("output", "outside-bound")


class RightTheFirstTime(Counting):
    """Right after a plan; each further launch of the plan reads a key less."""

    def plan(self, x: VerifyInput) -> Any:
        return [x, 0]

    def attend(self, state: Any, *tensors: Any) -> Attended:
        x, before = state
        state[1] += 1
        shorter = (x.cache_seqlens - before).clamp(min=1)
        return super().attend(replace(x, cache_seqlens=shorter), *tensors)


def test_a_replay_that_differs_for_no_known_reason_is_a_finding_all_the_same() -> None:
    (failure,) = check_case(CASE, described(RightTheFirstTime), ALONE).failures
    assert failure.key == ("contract", "changes-when-replayed")


@pytest.mark.parametrize(
    ("decides", "named"),
    [
        (lambda x: x.seq_lens.tolist(), "tolist"),
        (lambda x: int(x.seq_lens.max()), "_local_scalar_dense"),
        (lambda x: x.seq_lens[x.seq_lens > 2], "index"),
        (lambda x: x.seq_lens.repeat_interleave(x.seq_lens), "repeat_interleave"),
        (lambda x: x.seq_lens.nonzero(), "nonzero"),
    ],
)
def test_a_launch_that_asks_the_device_cannot_be_captured(decides: Any, named: str) -> None:
    class Asks(Counting):
        def attend(self, x: VerifyInput, *tensors: Any) -> Attended:
            decides(x)
            return super().attend(x, *tensors)

    (failure,) = check_case(CASE, described(Asks), ALONE).failures
    assert failure.key == ("contract", "not-capturable")
    assert failure.message.endswith(f"it waits for the device in {named}")


def test_backends_that_plan_in_python_would_be_refuted_if_they_said_they_are_capturable() -> None:
    for name in ("direct-mask", "cascade", "swa-window", "topology"):
        right = load(name)
        assert not right.capabilities.capturable
        able = msgspec.structs.replace(right.capabilities, capturable=True)
        found = kinds(replace(right, capabilities=able))
        assert found == {("contract", "not-capturable")}, name


def test_what_shapes_tell_is_no_decision() -> None:
    x, at = torch.arange(6.0), torch.tensor([2, 0])
    with host_decisions() as asked:
        x[at] = x[at] + torch.zeros(len(at))
        x.masked_fill_(x > 3, 0)
        at.repeat_interleave(torch.tensor([1, 1]), output_size=2)
        torch.searchsorted(x, x)
    assert asked == []


def test_batches_have_one_size_and_nothing_else_in_common() -> None:
    first, *others = batches(CASE)
    for found in (first, *others):
        rows = {tuple(r.num_rows for r in one.requests) for one in found.all}
        slots = {one.layout.num_slots for one in found.all}
        assert (len(rows), len(slots)) == (1, 1)
    assert [len(one.requests) for one in first.all] == [3, 3, 3]
    longest = [max(r.prefix_len for r in one.requests) for one in first.all]
    assert longest == [1, 7 + 4 + 11, 7]
    # The case is there as it is, but for padding, and behind it one node in place of a request.
    *own, beside = first.last.requests
    assert [r.tree for r in own] == [r.tree for r in CASE.requests]
    assert [r.prefix_len for r in own] == [7, 3]
    assert (first.last.seed, beside.num_nodes, beside.pad_rows) == (CASE.seed, 1, 10)
    assert all(r.pad_rows == 0 for r in first.captured.requests)


MISSING = importlib.util.find_spec("triton") is None
HOW = "not installed: triton (pip install triton)"
without_triton = pytest.mark.skipif(
    MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1", reason=HOW
)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    assert not MISSING, HOW
    with interpreter() as asked:
        yield asked


INTERPRETED = {
    "direct-mask": ("custom_mask", ("visibility", "captured-mask")),
    "cascade": ("kv_indices", ("visibility", "captured-tables")),
    "page-table": ("cache_seqlens", ("visibility", "captured-lengths")),
    "swa-window": ("kv_start", ("visibility", "captured-tables")),
    "topology": ("retrieve_parent_token", ("visibility", "captured-links")),
}


@without_triton
@pytest.mark.parametrize("name", INTERPRETED)
def test_triton_backends_decide_nothing_on_the_host_and_keep_nothing(ask: Ask, name: str) -> None:
    assert ask(captured_kinds, name, CASE) == set()


@without_triton
@pytest.mark.parametrize("name", INTERPRETED)
def test_what_a_triton_backend_keeps_of_the_captured_batch_is_named(ask: Ask, name: str) -> None:
    field, key = INTERPRETED[name]
    assert ask(captured_kinds, name, CASE, field) == {key}
