"""A launch that does not fit into memory is no finding: halves of its batch are checked instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from treeproof.contract.event import Halved
from treeproof.contract.registry import Backend, load
from treeproof.contract.script import Admit
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.checks import prepared
from treeproof.engine.checks.device_fault import is_out_of_memory
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.faults.smallest import CHAIN, FORK, case, request, script
from treeproof.generate.halves import halves
from treeproof.reports.terminal import figures

SEVEN = case(
    *(request(FORK if i % 2 else CHAIN, prefix=i) for i in range(7)), page_size=4, spare_pages=9
)
ATTENTION = CheckOptions(probes=frozenset({"random", "tomography"}))


def of_at_most(requests: int) -> Backend:
    """A right backend with memory for so many requests in a launch."""
    right = load("page-table")

    def make() -> Any:
        instance = right.make()
        attend = instance.attend

        def limited(x: Any, *tensors: Any) -> Any:
            if len(x.seq_lens) > requests:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")
            return attend(x, *tensors)

        instance.attend = limited
        return instance

    return replace(right, make=make)


def test_a_batch_is_cut_in_two_whose_requests_are_all_of_it() -> None:
    first, second = halves(SEVEN)
    assert (*first.requests, *second.requests) == SEVEN.requests
    assert (len(first.requests), len(second.requests)) == (3, 4)
    # Neither keeps room for the other, nor for pages that nobody holds.
    assert first.layout.num_slots == 4 * (1 + 1 + 1 + 2)
    assert halves(case(request(FORK))) == ()


def test_what_does_not_fit_has_no_verdict_and_says_of_how_many_requests_it_was() -> None:
    checked = check_case(SEVEN, of_at_most(3), ATTENTION)
    assert checked.out_of_memory
    assert checked.failures == ()
    assert {cell.status for cell in checked.cells} == {"not-checked"}
    words = "out of memory on 7 requests; halves are checked instead"
    assert {cell.reason for cell in checked.cells} == {words}


def test_one_request_that_does_not_fit_leaves_the_run_incomplete() -> None:
    checked = check_case(halves(halves(SEVEN)[0])[0], of_at_most(0), ATTENTION)
    assert checked.out_of_memory
    assert {cell.status for cell in checked.cells} == {"unavailable"}
    assert checked.cells[0].reason.startswith(
        "out of memory on 1 requests: attend: OutOfMemoryError"
    )


def test_memory_that_runs_out_later_on_the_same_case_is_no_finding_either() -> None:
    calls = []

    def make() -> Any:
        instance = load("page-table").make()
        attend = instance.attend

        def third(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("CUDA error: out of memory")
            return attend(*arguments)

        instance.attend = third
        return instance

    checked = check_case(SEVEN, replace(load("page-table"), make=make), ATTENTION)
    assert checked.out_of_memory
    assert checked.failures == ()


def test_memory_that_the_oracle_lacks_is_no_fault_of_anybodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_left(*arguments: Any) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")

    prepared.prepare.cache_clear()
    monkeypatch.setattr(prepared, "attend_batch", nothing_left)
    assert check_case(SEVEN, load("page-table"), ATTENTION).out_of_memory


def test_scripts_are_not_cut() -> None:
    served = script(request(CHAIN, prefix=2), request(CHAIN, prefix=2), steps=())
    assert len(halves(served)) == 2
    assert halves(msgspec.structs.replace(served, script=(Admit(request=0),))) == ()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) == is_one


NARROW = """
import torch
import treeproof
from treeproof.backends.page_table import PageTable
from treeproof.contract.registry import load

right = load("page-table")


@treeproof.register(
    "narrow", consumes=right.consumes, capabilities=right.capabilities, numerics=right.numerics
)
class Narrow(PageTable):
    def attend(self, x, *tensors):
        if len(x.seq_lens) > 5:  # probes put a request beside four
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().attend(x, *tensors)
"""


def test_a_run_checks_all_requests_in_launches_that_fit_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    settings = RunSettings(
        backends=(str(tmp_path / "narrow.py"), "page-table"),
        workers=1,
        store=None,
        run_dir=tmp_path / "run",
    )
    found = run(settings, cases=[SEVEN])

    assert [(h.backend, h.requests) for h in found.events if isinstance(h, Halved)] == [
        ("narrow", 7)
    ]
    judged = [
        len(drawn.rows)
        for drawn in found.cases
        for check in found.checks
        if check.case == drawn.case and check.backend == "narrow" and not _empty(check)
    ]
    assert sorted(judged) == [3, 4]
    assert found.failures == ()
    assert found.completed_checks("page-table") == 1  # whom it fits, it is given whole
    assert any(
        line
        == "memory   ran out 1 time, on launches of up to 7 requests: halves were checked instead"
        for line in figures(found)
    )


def _empty(check: Any) -> bool:
    return {cell.status for cell in check.cells} == {"not-checked"}
