"""What one layer's launch leaves for the next is named by whose cache, window or parameter that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from test_probe_model import (
    CASE,
    Planned,
    ReadsTheFirstCache,
    State,
    WindowOfTheFirstLayerAlone,
    WritesTheLastCache,
    with_shape,
)

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import Full, VerifyCase, Window
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import load
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose, wrong_groups
from treeproof.diagnosis.layers import LAYERS
from treeproof.engine.check import CheckOptions
from treeproof.engine.look import look
from treeproof.engine.observe import observe

FULL = with_shape(visibility=Full())
CAPPED = with_shape(visibility=Full(), softcap=0.5)
SCALED = with_shape(scale=0.75)


def planned(make: Any) -> Backend:
    """It has every field."""
    return describe(
        make, "planned", numerics=Numerics(p="float32"), capabilities=Capabilities(softcap=True)
    )


def cause(make: Any, case: VerifyCase, hypotheses: Any = HYPOTHESES) -> tuple[str, str]:
    backend = planned(make)

    def seen(one: VerifyCase) -> Any:
        return observe(one, backend, CheckOptions(), layers=True)

    found = diagnose(seen(case), seen, hypotheses)
    assert found is not None
    assert set(found.groups) == {"layers"}
    return found.cause, found.detail


def shaped(state: State, **fields: Any) -> State:
    return State(replace(state.x, shape=msgspec.structs.replace(state.x.shape, **fields)))


def by(first: Any, later: Any) -> Any:
    return first if first is not None else later


class ValuesOfTheLayerBefore(Planned):
    """Values are fetched while the last layer ran, and are a layer late."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        done = super().layer(state, q, k, v, *caches)
        late, state.caches = by(state.caches, caches), caches
        return replace(done, out=MaskRead().attend(state.x, q, caches[0], late[1]), lse=None)


class MaskRead:
    """Attention over a cache as it lies, row by row; nothing is written."""

    def attend(self, x: VerifyInput, q: Any, k_cache: Any, v_cache: Any) -> Any:
        out = q.new_zeros(len(q), q.shape[1], v_cache.shape[-1])
        group = q.shape[1] // k_cache.shape[1]
        for flat, at, slots in _rows(x):
            window = x.shape.window
            slots = [s for p, s in slots if window is None or at - window < p]
            k, v = (t[slots].float().repeat_interleave(group, 1) for t in (k_cache, v_cache))
            scores = torch.einsum("hd,nhd->hn", q[flat].float(), k) * x.shape.score_scale
            out[flat] = torch.einsum("hn,nhd->hd", scores.softmax(1), v).to(q)
        return out


def _rows(x: VerifyInput) -> Any:
    """Row of the launch, its position, and (position, slot) of its prefix and its path."""
    for b, line in enumerate(x.request_slots.tolist()):
        first, p = int(x.qo_indptr[b]), int(x.seq_lens[b])
        index = [i for i in x.retrieve_index[b].tolist() if i >= 0]
        prefix = [(c, int(x.req_to_token[line, c])) for c in range(p)]
        for r, flat in enumerate(index):
            path = [r]
            while (above := int(x.retrieve_parent_token[b, path[-1]])) >= 0:
                path.append(above)
            own = [
                (p + depth, int(x.out_cache_loc[first + row]))
                for depth, row in enumerate(path[::-1])
            ]
            yield flat, int(x.positions[flat]), [*prefix, *own]


class PrefixGatheredOnce(Planned):
    """The prefix is gathered once a step, into a buffer that all layers then read."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        done = super().layer(state, q, k, v, *caches)
        state.caches = by(state.caches, [cache.clone() for cache in caches])
        rows = state.x.out_cache_loc[state.x.out_cache_loc >= 0]
        read = [kept.clone() for kept in state.caches]
        for kept, cache in zip(read, caches, strict=True):
            kept[rows] = cache[rows]
        return replace(done, out=MaskRead().attend(state.x, q, *read), lse=None)


class CachesAreCaptured(Planned):
    """What a graph was captured with is what it goes on with, to read and to write."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        state.caches = by(state.caches, caches)
        return super().layer(state, q, k, v, *state.caches)


class RowsGoToTheFirstCache(Planned):
    """The pointer that writes is set once; rows are then looked for where they ought to be."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        state.caches = by(state.caches, caches)
        super().layer(state, q, k, v, *state.caches)
        return Attended(out=MaskRead().attend(state.x, q, *caches))


class QueriesAreCaptured(Planned):
    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        state.caches = by(state.caches, q.clone())
        return super().layer(state, state.caches, k, v, *caches)


class OneWindowForAll(Planned):
    """The width is a global of the module: that of the kind of layers planned last."""

    width: Any = None

    def plan(self, x: VerifyInput) -> State:
        OneWindowForAll.width = x.shape.visibility
        return State(x)

    def layer(self, state: State, *tensors: Any) -> Attended:
        return super().layer(shaped(state, visibility=OneWindowForAll.width), *tensors)


class CappedOnce(Planned):
    """The scores' buffer is capped in place, and told that it has been."""

    def layer(self, state: State, *tensors: Any) -> Attended:
        first = state.layers == 1
        return super().layer(state if first else shaped(state, softcap=None), *tensors)


class ScaledOnce(Planned):
    def layer(self, state: State, *tensors: Any) -> Attended:
        first = state.layers == 1
        return super().layer(state if first else shaped(state, scale=None), *tensors)


NAMED = [
    (ReadsTheFirstCache, CASE, "cache-of-another-layer",
     "those of the prefix, of the first of its plan"),
    (
        ValuesOfTheLayerBefore, CASE, "cache-of-another-layer",
        "its values, of the one before on its plan",
    ),
    (
        PrefixGatheredOnce, FULL, "cache-of-another-layer",
        "those of the prefix, of the first of its plan",
    ),
    (
        CachesAreCaptured, CASE, "cache-of-another-layer",
        "that of the first of its plan, and writes there, too",
    ),
    (
        WritesTheLastCache, CASE, "rows-written-to-another-layer",
        "that of the one before on its plan",
    ),
    (
        RowsGoToTheFirstCache, FULL, "rows-written-to-another-layer",
        "that of the first of its plan, and looked for in its own",
    ),
    (QueriesAreCaptured, FULL, "queries-of-another-layer", "of the first of its plan"),
    (
        WindowOfTheFirstLayerAlone, CASE, "window-of-another-layer",
        "none past the first of its plan",
    ),
    (OneWindowForAll, CASE, "window-of-another-layer", "that of the last that was planned"),
    (CappedOnce, CAPPED, "parameter-of-first-layer", "softcap"),
    (ScaledOnce, SCALED, "parameter-of-first-layer", "scale"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "case", "name", "detail"), NAMED)
def test_whose_it_is_that_a_layer_goes_by_is_named(
    make: Any, case: VerifyCase, name: str, detail: str
) -> None:
    assert cause(make, case) == (name, detail)
    others = tuple(one for one in HYPOTHESES if one.name != name)
    assert cause(make, case, others) == (UNKNOWN, "")


class PastTheFirst(Planned):
    """Right in a plan's first layer."""

    def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
        done = super().layer(state, q, k, v, *caches)
        return done if state.layers == 1 else self.later(state, done, q, *caches)

    def later(self, state: State, done: Attended, q: Any, *caches: Any) -> Attended:
        raise NotImplementedError


class LouderLater(PastTheFirst):
    def later(self, state: State, done: Attended, q: Any, *caches: Any) -> Attended:
        return replace(done, out=done.out * 1.125)


class OneSlotOnLater(PastTheFirst):
    """Where a table has moved under a plan, later layers read what lies behind it."""

    def later(self, state: State, done: Attended, q: Any, *caches: Any) -> Attended:
        moved = [cache.roll(-1, 0) for cache in caches]
        return replace(done, out=MaskRead().attend(state.x, q, *moved), lse=None)


class NarrowerLater(PastTheFirst):
    """The edge is moved on with each layer."""

    def later(self, state: State, done: Attended, q: Any, *caches: Any) -> Attended:
        if state.x.shape.window is None:
            return done
        narrow = shaped(state, visibility=Window(width=state.x.shape.window - 1))
        return replace(done, out=MaskRead().attend(narrow.x, q, *caches), lse=None)


@pytest.mark.parametrize("make", [LouderLater, OneSlotOnLater, NarrowerLater])
def test_what_goes_wrong_in_later_layers_and_is_not_another_layers_has_no_such_name(
    make: Any,
) -> None:
    assert cause(make, CASE) == (UNKNOWN, "")


def test_a_cap_of_another_size_is_not_one_that_is_used_up() -> None:
    class HalfACap(Planned):
        def layer(self, state: State, *tensors: Any) -> Attended:
            cap = state.x.shape.softcap
            later = state if state.layers == 1 or cap is None else shaped(state, softcap=cap / 2)
            return super().layer(later, *tensors)

    assert cause(HalfACap, CAPPED) == (UNKNOWN, "")


@pytest.mark.parametrize("case", [CASE, CAPPED, SCALED, with_shape(dtype="bfloat16")])
@pytest.mark.parametrize("name", ["cascade", "page-table", "topology"])
def test_the_layers_of_a_right_backend_need_no_cause(name: str, case: VerifyCase) -> None:
    seen = observe(case, load(name), CheckOptions(), layers=True)
    assert seen is not None
    assert "layers" in seen.found
    assert wrong_groups(seen) == ()


def test_the_cause_is_said_of_what_the_probe_of_a_model_found() -> None:
    (found,) = look(CASE, planned(PrefixGatheredOnce), CheckOptions())
    assert found.candidates == ("cache-of-another-layer",)
    assert {one.name for one in LAYERS} - {found.cause} < set(found.ruled_out)


def test_layers_are_not_looked_at_where_single_launches_are_wrong() -> None:
    class OffByOne(Planned):
        def layer(self, state: State, q: Any, k: Any, v: Any, *caches: Any) -> Attended:
            done = super().layer(state, q, k, v, *caches)
            return replace(done, out=done.out + 1)

    seen = observe(CASE, planned(OffByOne), CheckOptions(), layers=True)
    assert seen is not None
    assert "attend" in wrong_groups(seen)
    assert "layers" not in seen.found
