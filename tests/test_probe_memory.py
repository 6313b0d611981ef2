"""Memory that grows with each call is found; what fills and stays, and what others take, is not."""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.backends.page_table import PageTable
from treeproof.contract.backend import Backend, describe
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import PROBES
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.checks import memory as checks_memory
from treeproof.engine.checks import stale
from treeproof.faults.smallest import FORK, case, request
from treeproof.properties.probes import memory
from treeproof.properties.probes.memory import Leak, Meter, leak

CPU = torch.device("cpu")
CASE = case(request(FORK, prefix=3))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="host memory is read on Linux")
pytestmark = LINUX


def keeping(what: Callable[[], Any], most: int | None = None) -> Callable[[], object]:
    """A call that keeps one more of these, up to `most` of them."""
    kept: list[Any] = []

    def call() -> None:
        if most is None or len(kept) < most:
            kept.append(what())

    return call


def mapped() -> mmap.mmap:
    pages = mmap.mmap(-1, 8192)
    pages.write(b"x" * 8192)
    return pages


@pytest.mark.parametrize(
    ("what", "name", "least", "most"),
    [
        (lambda: torch.empty(1000), "memory from malloc", 4000, 5000),
        (lambda: torch.empty(1), "memory from malloc", 64, 500),
        (lambda: bytearray(600), "memory from malloc", 600, 700),
        (lambda: torch.empty(1 << 18), "memory from malloc", 1 << 20, (1 << 20) + 9000),
        (mapped, "resident memory", 8000, 8700),
    ],
    ids=["a tensor", "a number", "600 bytes", "1 MiB", "pages of its own"],
)
def test_what_is_kept_of_each_call_is_a_leak_of_so_many_bytes(
    what: Callable[[], Any], name: str, least: int, most: int
) -> None:
    found = leak(keeping(what), CPU)

    assert found is not None
    assert (found.name, found.calls) == (name, 528)
    assert least <= found.bytes_a_call <= most


def test_a_leak_that_a_machine_has_no_room_for_is_told_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "ENOUGH", 20 * 4000)
    found = leak(keeping(lambda: torch.empty(1000)), CPU)

    assert found is not None
    assert found.calls == 32


def workspace() -> Callable[[], object]:
    """Grows up to the largest that was asked for, as it was by the tenth call."""
    held = [torch.empty(0)]
    sizes = iter([*range(1000, 11_000, 1000)])

    def call() -> None:
        size = next(sizes, 500)
        if held[0].numel() < size:
            held[0] = torch.empty(size)
        held[0][:500].add_(1)

    return call


def in_cycles() -> None:
    """Freed by the collector alone, later."""
    one: list[Any] = [torch.empty(1000)]
    one.append(one)


@functools.lru_cache
def remembered(number: int) -> torch.Tensor:
    return torch.empty(1000)


def of_another_key_each_time() -> Callable[[], object]:
    """The cache holds 128."""
    numbers = iter(range(10_000))
    return lambda: remembered(next(numbers))


def every_second() -> Callable[[], object]:
    """Kept by every second call, and all let go of by every twentieth."""
    kept: list[Any] = []
    numbers = iter(range(10_000))

    def call() -> None:
        number = next(numbers)
        if number % 2:
            kept.append(torch.empty(1000))
        if number % 20 == 0:
            kept.clear()

    return call


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.empty(1000).sum(),
        keeping(lambda: torch.empty(1000), most=1),
        keeping(lambda: torch.empty(1000), most=100),
        keeping(lambda: torch.empty(1000), most=400),
        workspace(),
        in_cycles,
        of_another_key_each_time(),
        every_second(),
    ],
    ids=["frees", "once", "100", "400", "a workspace", "cycles", "lru_cache", "lets go"],
)
def test_what_fills_and_stays_or_is_let_go_of_is_none(call: Callable[[], object]) -> None:
    assert leak(call, CPU) is None


def test_what_another_process_takes_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, and not by calls."""
    readings = iter(range(0, 1000 << 20, 1 << 20))

    def taken() -> int:
        return next(readings)

    sizes = iter([0, *memory.WINDOWS, 0])
    grown = [0]

    def by_calls() -> int:
        grown[0] += next(sizes) << 20
        return grown[0]

    call = keeping(lambda: None, most=0)
    monkeypatch.setattr(memory, "meters", lambda device: (Meter("own", by_calls, 1 << 18),))
    assert leak(call, CPU) == Leak("own", float(1 << 20), 528)
    monkeypatch.setattr(memory, "WINDOWS", (8, 8, 8))
    monkeypatch.setattr(memory, "meters", lambda device: (Meter("shared", taken, 1 << 10),))
    assert leak(call, CPU) is None


def backend(make: type[PageTable]) -> Backend:
    right = load("page-table")
    return describe(
        make, "planted", consumes=right.consumes, capabilities=right.capabilities, numerics=right.numerics
    )  # fmt: skip


class KeepsOutputs(PageTable):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def attend(self, x: Any, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        self.kept.append(done.out)
        return done


class KeepsPlans(PageTable):
    """Of every build, in the class: an object of its own does not help."""

    kept: list[Any] = []  # noqa: RUF012

    def build(self, c: Any) -> Any:
        self.kept.append(torch.empty(64))
        return super().build(c)


class KeepsFifty(KeepsOutputs):
    def attend(self, x: Any, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        del self.kept[50:]
        return done


def checked(make: type[PageTable], of: VerifyCase = CASE, **options: Any) -> Checked:
    return check_case(of, backend(make), CheckOptions(**options))


@pytest.mark.parametrize("make", [KeepsOutputs, KeepsPlans])
def test_a_backend_that_keeps_something_of_each_step_fails_its_contract(
    make: type[PageTable],
) -> None:
    (failure,) = checked(make).failures

    assert (failure.key, failure.probe) == (("contract", "leaks-memory"), "memory")
    assert failure.message.startswith("memory from malloc grows by ")
    assert "each of 528 steps of build, attend, accept, commit on the same case" in failure.message
    assert checked(make, probes=frozenset(PROBES) - {"memory"}).failures == ()


def test_what_grows_as_well_without_the_backend_is_no_leak_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a driver does that a profiler was attached to: with each launch, whoever makes it."""
    kept: list[torch.Tensor] = []
    right = stale.garble

    def launches(*given: Any) -> Any:
        kept.append(torch.empty(1))
        return right(*given)

    monkeypatch.setattr(stale, "garble", launches)
    monkeypatch.setattr(checks_memory, "_GROWING", set())
    for _ in range(2):  # the second time it is known
        result = checked(PageTable)

        assert result.failures == ()
        (cell,) = [cell for cell in result.cells if "grows" in cell.reason]
        assert (cell.identity, cell.status) == ("contract", "not-checked")
        assert cell.reason.startswith("whether it keeps memory from malloc")
    before = len(kept)
    checked(PageTable)
    assert len(kept) - before < 528

    class KeepsPages(PageTable):
        kept: list[Any] = []  # noqa: RUF012

        def attend(self, x: Any, *tensors: Any) -> Any:
            self.kept.append(mapped())
            return super().attend(x, *tensors)

    (failure,) = checked(KeepsPages).failures
    assert failure.message.startswith("resident memory grows by ")


def test_one_that_keeps_fifty_and_no_more_passes() -> None:
    assert checked(KeepsFifty).failures == ()


def test_one_small_case_in_eight_looks_and_nightly_all_of_them() -> None:
    def alike(seed: int) -> VerifyCase:
        return case(request(), seed=seed)

    alone = frozenset({"memory"})
    failing = [n for n in range(1, 17) if checked(KeepsOutputs, alike(n), probes=alone).failures]
    assert failing == [3, 11]
    assert checked(KeepsOutputs, alike(1), probes=alone, profile="nightly").failures
    large = case(request(FORK, prefix=8_000), heads=(8, 1), head_dims=(64, 64), seed=3)
    assert checked(KeepsOutputs, large, probes=alone).failures == ()


def test_a_backend_that_is_wrong_otherwise_is_not_run_hundreds_of_times() -> None:
    class Raises(KeepsOutputs):
        calls = 0

        def accept(self, x: Any, target: Any) -> Any:
            Raises.calls += 1
            return replace(super().accept(x, target), tokens=None)

    failures = checked(Raises).failures
    assert {failure.kind for failure in failures} == {"wrong-type"}
    assert Raises.calls < 20
