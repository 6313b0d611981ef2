"""Bulk: many trees in a few launches, on GPUs alone, each backend in cases that it takes."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.failure import ATTENTION
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.settings import RunSettings
from treeproof.engine.shards import Shard
from treeproof.engine.supply import Source, drawn_sources
from treeproof.faults.catalog import FAULTS
from treeproof.generate.bulk import BulkShape, BulkUnit, bulk_case, bulk_units, draw_bulk
from treeproof.generate.profiles import PROFILES

OURS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
ANY = Capabilities(devices={"cpu", "cuda"})
PAGED = Capabilities(
    devices={"cuda"}, page_sizes={128}, dtypes={"bfloat16"}, mask_modes={"QLEN_ONLY"}
)
UNIFORM = Capabilities(devices={"cuda"}, ragged=False, pad_rows=False)
SMALL = Capabilities(devices={"cuda"}, head_dims={64})


def sources(able: dict[str, Capabilities], **rest: Any) -> list[Source]:
    given: dict[str, Any] = {"profile": "gpu", "device": "cuda", **rest}
    settings = RunSettings(backends=tuple(able), **given)
    return [source for source in drawn_sources(settings, able) if "-bulk-" in source.name]


def cases(found: list[Source], name: str) -> list[VerifyCase]:
    return [s.draw()[0] for s in found if s.backends is not None and name in s.backends]


def test_the_profile_has_two_thousand_trees_of_the_sizes_that_are_served() -> None:
    drawn = [draw_bulk(unit) for unit in bulk_units("gpu", 0, PROFILES["gpu"].cases)]
    requests = [request for case in drawn for request in case.requests]
    assert len({(r.tree, r.prefix_len, r.row_of_node) for r in requests}) >= 2000
    rows = [request.num_rows for request in requests]
    assert statistics.median(rows) >= 24
    assert (min(rows) >= 8, max(rows)) == (True, 64)
    assert {request.prefix_len for request in requests} == {512, 4096}
    assert {(case.shape.dtype, case.mask.mode.name) for case in drawn} == {
        (dtype, mode) for dtype in ("bfloat16", "float16") for mode in ("FULL_MASK", "QLEN_ONLY")
    }


def test_a_unit_is_the_same_whenever_it_is_drawn_and_another_one_is_not() -> None:
    assert draw_bulk(BulkUnit("gpu", 3, 1)) == draw_bulk(BulkUnit("gpu", 3, 1))
    ids = {draw_bulk(BulkUnit("gpu", seed, block)).id for seed in (3, 4) for block in (0, 1)}
    assert len(ids) == 4


def test_each_backend_gets_cases_that_it_takes() -> None:
    able = {"any": ANY, "paged": PAGED, "uniform": UNIFORM, "small": SMALL}
    found = sources(able)
    for name, capabilities in able.items():
        own = cases(found, name)
        assert len(own) == 24
        assert [capabilities.refusal(case, "cuda") for case in own] == [None] * 24
    assert len(cases(found, "any")[0].requests) == 128
    widths = {request.num_rows for case in cases(found, "uniform") for request in case.requests}
    assert len(cases(found, "uniform")[0].requests) == 128
    assert widths <= set(range(8, 65))


@pytest.mark.parametrize(
    "rest", [{"device": "cpu"}, {"profile": "ci"}, {"profile": "nightly"}, {"examples": 44}]
)
def test_there_is_none_where_launches_are_slow_or_few_cases_are_asked_for(
    rest: dict[str, Any],
) -> None:
    assert sources({"any": ANY}, **rest) == []


def test_each_unit_is_in_one_shard() -> None:
    whole = [source.name for source in sources({"any": ANY})]
    parts = [
        [source.name for source in sources({"any": ANY}, shard=Shard(i, 3))] for i in (1, 2, 3)
    ]
    assert sorted(name for part in parts for name in part) == sorted(whole)


SMALL_BULK = bulk_case(5, BulkShape("bfloat16", 16), 6, MaskMode.FULL_MASK, (8, 12))
OPTIONS = CheckOptions(profile="gpu", probes=ATTENTION)


def test_launches_of_attend_alone_are_looked_at() -> None:
    found = check_case(SMALL_BULK, load("cascade"), OPTIONS)
    judged = {cell.identity for cell in found.cells if cell.status == "pass"}
    assert (judged, found.failures) == ({"visibility", "output", "contract", "position"}, ())
    reasons = {cell.reason for cell in found.cells if cell.status == "not-checked"}
    assert "bulk: launches of attend alone are looked at" in reasons


@pytest.mark.parametrize("name", ["causal-kernel", "parent-hidden", "prefix-of-neighbour.first"])
def test_a_leak_in_any_of_many_requests_is_seen(name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    backend = next(b for b in map(load, OURS) if fault.applies(b))
    found = check_case(SMALL_BULK, fault.plant(backend), OPTIONS)
    assert "visibility" in {failure.identity for failure in found.failures}
