"""Caches as engines hold them: what a backend is handed, who is sent what, and what lies beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import CaseDrawn
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.layout import KVLayout
from treeproof.contract.registry import load
from treeproof.contract.wire import encode_case
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.reducer import reduce
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import FORK, case, request
from treeproof.generate.fitting import fitted
from treeproof.generate.storage import stored
from treeproof.generate.tags import EVENT_CLASSES, tags
from treeproof.properties.probes.storage import Caches
from treeproof.reports.case_sheet import case_lines

FIVE = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
STRIDED = ("layered", "interleaved")
SDPA = "treeproof.backends.adapters.sdpa:sdpa-direct-mask"
# Four slots, two heads; values narrower than keys.
K = torch.arange(4 * 2 * 5.0).view(4, 2, 5)
V = 100 + torch.arange(4 * 2 * 3.0).view(4, 2, 3)


def in_memory(storage: Any) -> Caches:
    layout = KVLayout(page_size=2, num_slots=4, storage=storage)
    return Caches.laid(
        layout, K.clone(), V.clone(), torch.full((2, 5), -1.0), torch.full((2, 3), -2.0)
    )


def a_case(storage: Any, **fields: Any) -> VerifyCase:
    """Two trees in pages of four slots, with a page to spare."""
    requests = request(FORK, 5, pad_rows=1), request((-1, 0, 1), 0)
    layout = {"storage": storage}
    return case(
        *requests,
        heads=(4, 2),
        head_dims=(16, 8),
        page_size=4,
        spare_pages=1,
        layout=layout,
        **fields,
    )


@pytest.mark.parametrize("storage", ["NHD", *STRIDED])
def test_what_is_laid_by_slot_is_handed_over_and_looked_at_by_slot(storage: Any) -> None:
    caches = in_memory(storage)

    assert torch.equal(caches.k, K)
    assert torch.equal(caches.v, V)
    caches.k[2, 1, 3], caches.v[0, 0, 0] = 7.0, 8.0
    k, v = caches.by_slot()
    assert (k != K).nonzero().tolist() == [[2, 1, 3]]
    assert (v != V).nonzero().tolist() == [[0, 0, 0]]
    assert caches.strayed() == ()


def test_each_layout_lies_in_memory_as_it_says() -> None:
    plain, layered, interleaved = map(in_memory, ("NHD", *STRIDED))

    assert plain.k.is_contiguous()
    assert plain.v.is_contiguous()
    # Three layers, of which the middle one is ours: whole = (slots, layers, heads, lanes).
    whole = layered.k.as_strided((4, 3, 2, 5), (30, 10, 5, 1), 0)
    assert torch.equal(whole[:, 1], K)
    assert torch.equal(whole[:, 0], torch.full((4, 2, 5), -1.0))
    assert torch.equal(whole[:, 2], torch.full((4, 2, 5), -1.0))
    # A slot is ten numbers of K and six of V.
    slot_2 = interleaved.k.as_strided((16,), (1,), 2 * 16)
    assert slot_2.tolist() == [*K[2].flatten().tolist(), *V[2].flatten().tolist()]
    assert interleaved.k.untyped_storage().data_ptr() == interleaved.v.untyped_storage().data_ptr()


def test_a_cache_in_pages_of_heads_is_handed_over_in_pages() -> None:
    caches = in_memory("HND")

    assert caches.k.is_contiguous()
    assert caches.k.shape == (2, 2, 2, 5)
    for slot in range(4):
        assert torch.equal(caches.k[slot // 2, :, slot % 2], K[slot])
        assert torch.equal(caches.v[slot // 2, :, slot % 2], V[slot])
    caches.v[1, 0, 1, 2] = 8.0
    k, v = caches.by_slot()
    assert torch.equal(k, K)
    assert (v != V).nonzero().tolist() == [[3, 0, 2]]


@pytest.mark.parametrize("beyond", [-10, 10], ids=["layer-before", "layer-after"])
def test_a_write_into_the_layer_beside_is_seen_at_its_slot(beyond: int) -> None:
    caches = in_memory("layered")
    beside = caches.k.as_strided(K.shape, caches.k.stride(), caches.k.storage_offset() + beyond)
    beside[3, 0, 0] = 5.0

    assert caches.strayed() == (3,)
    assert torch.equal(caches.by_slot()[0], K)


@pytest.mark.parametrize("name", FIVE)
def test_the_five_are_right_in_every_layout_they_take(name: str) -> None:
    for storage, fields in (("layered", {"kv_dtype": "int8"}), ("interleaved", {"window": 3})):
        result = check_case(a_case(storage, **fields), load(name), CheckOptions())

        assert result.failures == ()
        measured = {c.identity for c in result.cells if c.status == "pass"}
        assert {"visibility", "kv", "output"} <= measured


@pytest.mark.parametrize("storage", ["HND", *STRIDED])
def test_a_kernel_of_others_is_right_in_every_layout_it_takes(storage: Any) -> None:
    result = check_case(a_case(storage), load(SDPA), CheckOptions())

    assert result.failures == ()
    measured = {c.identity for c in result.cells if c.status == "pass"}
    assert {"visibility", "output"} <= measured


def test_pages_of_heads_that_are_read_as_pages_of_tokens_are_seen() -> None:
    right = load(SDPA)

    def attend(x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
        nhd = [
            cache.flatten().view(-1, *given.shape[1:])
            for cache, given in zip(caches, (k, v), strict=True)
        ]
        layout = msgspec.structs.replace(x.kv, storage="NHD")
        return right.make().attend(replace(x, kv=layout), q, k, v, *nhd)

    wrong = replace(right, make=lambda: SimpleNamespace(attend=attend))

    assert check_case(a_case("NHD"), right, CheckOptions()).failures == ()
    kinds = {f.kind for f in check_case(a_case("HND"), wrong, CheckOptions()).failures}
    assert {"heads-differ", "not-written", "outside-bound"} <= kinds


def test_who_says_nothing_of_layouts_is_sent_contiguous_caches_alone() -> None:
    backend = load("direct-mask")
    able = msgspec.structs.replace(backend.capabilities, cache_layouts={"NHD"})
    careful = replace(backend, capabilities=able)
    assert Capabilities().cache_layouts == {"NHD"}

    cells = check_case(a_case("layered"), careful, CheckOptions()).cells

    assert {(c.status, c.reason) for c in cells} == {("unsupported", "cache layout layered")}


def failing(fault: str, backend: str, tried: VerifyCase) -> dict[str, str]:
    """Kinds of failures, and what the first of each says."""
    planted: Backend = exactly(fault).into(load(backend))
    found = check_case(tried, planted, CheckOptions()).failures
    return {f.kind: f.message for f in reversed(found)}


def test_rows_written_as_if_there_were_one_layer_land_in_another() -> None:
    found = failing("strides-ignored.writes", "cascade", a_case("layered"))

    assert {"not-written", "other-layer-written"} <= set(found)
    assert "attend writes into another layer's cache, beside slot" in found["other-layer-written"]


def test_a_commit_that_ignores_strides_is_seen_moving_what_is_not_its_own() -> None:
    found = failing("strides-ignored.commit", "page-table", a_case("layered"))

    assert {"path-not-compacted", "other-layer-written"} <= set(found)
    assert "commit writes into another layer's cache" in found["other-layer-written"]


def test_a_backend_is_sent_the_layouts_that_it_takes_and_draws_stay_as_they_are() -> None:
    cases = [a_case("NHD", seed=seed) for seed in range(1, 61)]

    assert [stored(c, {"NHD"}) for c in cases] == cases
    both = [stored(c, {"NHD", *STRIDED}).layout.storage for c in cases]
    assert all(4 <= both.count(storage) <= 16 for storage in STRIDED)
    assert 30 < both.count("NHD") < 50
    assert both == [stored(c, [*STRIDED, "NHD"]).layout.storage for c in cases]
    only = {stored(c, {"layered"}).layout.storage for c in cases}
    assert only == {"layered"}
    assert (
        msgspec.structs.replace(stored(cases[0], {"layered"}), layout=cases[0].layout) == cases[0]
    )


def test_a_default_layout_stands_in_no_file_so_that_ids_stay() -> None:
    assert b"storage" not in encode_case(a_case("NHD"))
    assert b'"storage":"layered"' in encode_case(a_case("layered"))
    assert a_case("layered").id != a_case("NHD").id


def test_backends_of_one_run_get_the_same_draws_each_in_its_own_layouts(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "from dataclasses import replace\n"
        "from treeproof.contract.capabilities import Capabilities\n"
        "from treeproof.contract.registry import load, register_backend\n"
        "register_backend(replace(load('page-table'), name='plain', capabilities=Capabilities()))\n"
    )
    settings = RunSettings(
        backends=("page-table", str(tmp_path / "plain.py")), examples=24, workers=0, reduce=False,
        store=None, run_dir=tmp_path / "run", identities=("candidate",),
    )  # fmt: skip
    done = run(settings, lambda event: None)

    assert done.failures == ()
    cases = {e.case: done.folder.read_case(e.case) for e in done.events if isinstance(e, CaseDrawn)}
    sent: dict[str, list[VerifyCase]] = {"page-table": [], "plain": []}
    for check in done.checks:
        if not cases[check.case].script:
            sent[check.backend].append(cases[check.case])
    assert {c.layout.storage for c in sent["plain"]} == {"NHD"}
    assert {c.layout.storage for c in sent["page-table"]} > {"NHD"}
    seeds = [sorted(c.seed for c in found) for found in sent.values()]
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 24


def test_a_reduction_goes_back_to_a_contiguous_cache_first() -> None:
    asked: list[str] = []

    def still_fails(tried: VerifyCase) -> bool:
        asked.append(tried.layout.storage)
        return True

    assert reduce(a_case("layered"), still_fails).case.layout.storage == "NHD"
    kept = reduce(a_case("layered"), lambda tried: tried.layout.storage == "layered")
    assert kept.case.layout.storage == "layered"
    assert kept.case.num_rows == 1


def test_a_shape_that_is_given_is_fitted_to_the_layouts_of_a_backend() -> None:
    able = Capabilities(cache_layouts={"layered"})
    fit = fitted(a_case("NHD"), able, "cpu")

    assert fit is not None
    assert fit.layout.storage == "layered"
    assert able.refusal(fit, "cpu") is None


def test_show_says_how_the_caches_lie() -> None:
    assert any(line.endswith(", caches layered") for line in case_lines(a_case("layered")))
    assert not any("caches" in line for line in case_lines(a_case("NHD")))


def test_the_figures_of_a_run_count_cases_by_how_the_caches_lie() -> None:
    assert [tag for tag in tags(a_case("layered")) if tag.startswith("caches:")] == [
        "caches:layered"
    ]
    assert tags(a_case("NHD")) == tags(a_case("layered"))[:-1]
    assert not any(tag.startswith("caches:") for tag in EVENT_CLASSES)  # nobody must have them


def test_other_words_are_refused_with_those_that_are_accepted() -> None:
    said = "accepted are NHD, HND, layered, interleaved"
    with pytest.raises(ValueError, match=f"storage is 'HDN': {said}"):
        KVLayout(page_size=1, num_slots=1, storage="HDN")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cache_layouts.*accepted are sets of NHD"):
        Capabilities(cache_layouts={"HDN"})  # type: ignore[arg-type]
