"""Faults between the layers of a model: what one launch leaves behind for the next of the same plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Identity
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.shape import MAX_WIDTH, Window
from treeproof.faults.fault import Fault
from treeproof.faults.plant import PlantError
from treeproof.faults.smallest import case, request

_TURN = 3
"""A seed by which a case is run through a model."""


@dataclass
class _Planned:
    """What a step's plan is: the batch, and what its launches have left."""

    x: VerifyInput
    caches: tuple[Tensor, ...] = ()
    layers: int = 0


Launch = Callable[..., Attended]


def _between(around: Callable[..., Attended]) -> Callable[[Backend], Backend]:
    """Every step gets a plan of its own; `around(attend, planned, q, k, v, k_cache, v_cache)`."""

    def plant(backend: Backend) -> Backend:
        if "attend" not in backend.stages:
            raise PlantError(f"{backend.name} has no stage attend")

        def make() -> Any:
            instance = backend.make()
            if hasattr(instance, "plan"):
                raise PlantError(f"{backend.name} has a plan of its own")
            right = instance.attend

            def attend(planned: _Planned, *tensors: Tensor) -> Attended:
                planned.layers += 1
                return around(right, planned, *tensors)

            instance.plan, instance.attend = _Planned, attend
            return instance

        return replace(backend, make=make)

    return plant


def _first_cache_read(right: Launch, planned: _Planned, *tensors: Tensor) -> Attended:
    done = right(planned.x, *tensors)
    planned.caches = planned.caches or tensors[3:]
    if planned.layers == 1:
        return done
    # A copy: only reads go astray.
    first = (cache.clone() for cache in planned.caches)
    wrong = right(planned.x, *tensors[:3], *first)
    return replace(done, out=wrong.out, lse=wrong.lse)


def _last_cache_written(right: Launch, planned: _Planned, *tensors: Tensor) -> Attended:
    last, planned.caches = planned.caches or tensors[3:], tensors[3:]
    filled = [cache.clone() for cache in tensors[3:]]
    done = right(planned.x, *tensors[:3], *filled)
    if planned.layers == 1:
        last = tensors[3:]
    slots = planned.x.out_cache_loc[planned.x.out_cache_loc >= 0]
    for cache, right_one in zip(last, filled, strict=True):
        cache[slots] = right_one[slots]
    return done


def _window_used_up(right: Launch, planned: _Planned, *tensors: Tensor) -> Attended:
    x = planned.x
    if planned.layers > 1 and x.shape.window is not None:
        shape = msgspec.structs.replace(x.shape, visibility=Window(width=MAX_WIDTH))
        x = replace(x, shape=shape)
    return right(x, *tensors)


def _attends(backend: Backend) -> bool:
    """In slots one after another: of caches in pages the index would be another one."""
    return "attend" in backend.stages and "out_cache_loc" in backend.consumes


def _cuts_by_width(backend: Backend) -> bool:
    """Whether attend cuts by the width it is told."""
    return backend.name in ("direct-mask", "page-table", "topology")


def _fault(
    name: str,
    says: str,
    around: Callable[..., Attended],
    cause: str,
    smallest: VerifyCase,
    applies: Callable[[Backend], bool] = _attends,
    identity: Identity = "output",
) -> Fault:
    return Fault(
        family="layers-confused",
        variant=name,
        says=says,
        sources=(),
        stage="attend",
        identity=identity,
        evidence="measured",
        cause=cause,
        smallest=smallest,
        plant=_between(around),
        applies=applies,
        seeded=True,
    )


FAULTS = (
    _fault(
        "first-cache-read",
        "a plan holds on to the cache of the first layer, and every later layer reads that one",
        _first_cache_read,
        "cache-of-another-layer",
        case(request(prefix=1), seed=_TURN),
    ),
    _fault(
        "last-cache-written",
        "the rows of a layer are written to the cache of the layer before it",
        _last_cache_written,
        "rows-written-to-another-layer",
        case(request(), seed=_TURN),
        identity="kv",
    ),
    _fault(
        "window-used-up",
        "the first layer with a window uses its metadata up, and later ones read the whole prefix",
        _window_used_up,
        "window-of-another-layer",
        case(request(prefix=1), window=1, seed=_TURN),
        applies=_cuts_by_width,
    ),
)
