"""Scripts whose layers have sinks, distances, codes or windows: served rightly, and wrongly in later rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_rounds import TREE, checked, kinds, ready, served, spoiled, turns, with_pool

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Attended, Candidates, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Finish, Prefill, Step
from treeproof.contract.shape import Window
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import request

STEPS: list[Step] = [
    *ready(0, 1), turns(3, 4, idle=1), turns(4, 0), Finish(request=0),
    Admit(request=0), Prefill(request=0, tokens=4), Prefill(request=0), turns(1, 3),
]  # fmt: skip

LAYERS: dict[str, dict[str, Any]] = {
    "sinks": {"sinks": True},
    "distances": {"alibi": True},
    "int8": {"kv_dtype": "int8"},
    "float8": {"kv_dtype": "float8_e4m3fn"},
    "window": {"window": 4},
    "window, pages given back": {"window": 4, "layout": {"evicted": True}},
    "all of it": {"window": 4, "sinks": True, "alibi": True, "kv_dtype": "int8", "softcap": 3.0},
}


def script(layer: dict[str, Any], **further: Any) -> VerifyCase:
    return served(
        request(TREE, 6), request(TREE, 7, rows=(0, 4, 3, 2, 1), pad_rows=1), steps=STEPS,
        page_size=2, heads=(4, 2), head_dims=(16, 16), **{**layer, **further},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_what_a_layer_has_is_served_over_many_rounds(layer: dict[str, Any], dtype: str) -> None:
    for backend in ("cascade", "topology") if dtype == "float32" else ("page-table",):
        found = checked(script(layer, dtype=dtype), backend)
        assert found.failures == ()
        assert found.generated is not None
        assert (found.generated.rounds, found.generated.requests) == (3, 3)


FAULTS = {
    "sinks": ("sinks-missing.later-rows", "layer-of-first-round.sinks"),
    "distances": ("alibi-missing", "alibi-by-row", "layer-of-first-round.slopes"),
    "int8": (
        "kv-scale-missing.keys", "kv-scale-missing.values", "kv-scale-of-other.exchanged",
        "kv-scale-of-first-head", "layer-of-first-round.scales",
    ),
    "window": ("window-off-by-one.up", "window-by-local-row", "layer-of-first-round.window"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "name"), [(layer, name) for layer, names in FAULTS.items() for name in names]
)
def test_a_script_shows_faults_of_what_a_layer_has(layer: str, name: str) -> None:
    fault = exactly(name)
    backend = next(b for b in ("direct-mask", "page-table", "cascade") if fault.applies(load(b)))
    found = checked(script(LAYERS[layer]), fault.into(load(backend)))
    assert {(f.identity, f.stage) for f in found.failures} == {("output", "attend")}


def test_full_layers_are_served_among_windowed_ones_where_all_pages_are_kept() -> None:
    seen: list[set[int | None]] = []

    def around(right: Any, x: VerifyInput, *tensors: Any) -> Attended:
        seen[-1].add(x.shape.window)
        done: Attended = right(x, *tensors)
        return done

    for layer in ("window", "window, pages given back"):
        seen.append(set())
        assert checked(script(LAYERS[layer]), spoiled("attend", around)).failures == ()
    assert seen == [{4, None}, {4}]


def test_a_backend_of_windows_alone_serves_windows_alone() -> None:
    widths: set[int | None] = set()

    def around(right: Any, c: Candidates) -> VerifyInput:
        assert isinstance(c.shape.visibility, Window)
        widths.add(c.shape.window)
        made: VerifyInput = right(c)
        return made

    only = spoiled("build", around)
    only = replace(only, capabilities=Capabilities(full=False))
    assert checked(script(LAYERS["window"]), only).failures == ()
    assert widths == {4}


def test_a_window_that_is_cut_in_the_full_layers_too_is_seen() -> None:
    """One plan for every layer."""
    plans: dict[tuple[int, ...], VerifyInput] = {}

    def around(right: Any, x: VerifyInput, *tensors: Any) -> Attended:
        first = plans.setdefault(tuple(x.seq_lens.tolist()), x)
        done: Attended = right(replace(x, shape=first.shape), *tensors)
        return done

    # The object of full layers is another one, so what is kept is kept outside of both.
    found = checked(script(LAYERS["window"]), spoiled("attend", around))
    assert {failure.identity for failure in found.failures} == {"output"}


def test_codes_of_a_cache_are_judged_bit_by_bit() -> None:
    """A row that is stored by the other scale is not where rounding would leave it."""

    def around(right: Any, x: VerifyInput, *tensors: Any) -> Attended:
        done: Attended = right(x, *tensors)
        k_cache = tensors[3]
        k_cache[x.out_cache_loc[0]] = k_cache[x.out_cache_loc[0]] + 1
        return done

    found = checked(script(LAYERS["int8"]), spoiled("attend", around))
    assert kinds(found) == {("kv", "not-written")}


class Reversed(PagedPool):
    """Cached pages are handed out the last one first."""

    def match(self, request: int, tokens: Any) -> Any:
        found = list(super().match(request, tokens))
        return found[::-1]


def test_codes_that_are_handed_out_wrongly_are_read_back() -> None:
    steps: list[Step] = [*ready(0), turns(0), Admit(request=1)]
    shared = served(
        request(TREE, 7), request(TREE, 8), steps=steps, page_size=2, heads=(4, 2),
        head_dims=(16, 16), kv_dtype="int8", layout={"shared_prefix": 6},
    )  # fmt: skip
    assert checked(shared).failures == ()
    assert kinds(checked(shared, with_pool(Reversed))) == {("kv", "stale-prefix")}


def test_scales_and_sinks_are_one_layers_in_every_round() -> None:
    """They are drawn for the script, not for its rounds, whose seeds are others."""
    told: list[torch.Tensor] = []

    def around(right: Any, x: VerifyInput, *tensors: Any) -> Attended:
        assert x.sinks is not None
        told.append(x.sinks)
        done: Attended = right(x, *tensors)
        return done

    assert checked(script(LAYERS["all of it"]), spoiled("attend", around)).failures == ()
    assert len(told) == 6  # three rounds of two layers
    assert all(torch.equal(told[0], other) for other in told[1:])
