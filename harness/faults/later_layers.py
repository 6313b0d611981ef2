"""Faults of later rounds alone, in what a layer has beside its activations: sinks, slopes, scales, window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.contract.shape import Window
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.plant import Around, remembering
from treeproof.faults.smallest import request, script


@dataclass
class _Rounds:
    """What attend has seen: slots that were written before this round, and lengths by line of the table."""

    slots: list[int] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    count: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)

    def see(self, x: VerifyInput) -> None:
        """A round has as many launches as there are layers; a new one has other slots or lengths."""
        slots = [*x.out_cache_loc.tolist(), *x.seq_lens.tolist()]
        if slots == self.slots:
            return
        self.written.update(self.slots[: len(x.out_cache_loc)])
        self.slots, self.count = slots, self.count + 1
        self.before |= self.lengths
        self.lengths = dict(zip(x.request_slots.tolist(), x.seq_lens.tolist(), strict=True))


Change = Callable[[VerifyInput, _Rounds], VerifyInput]
"""What attend goes by instead."""


def _no_sinks(x: VerifyInput, rounds: _Rounds) -> VerifyInput:
    if rounds.count < 2 or x.sinks is None:
        return x
    return replace(x, sinks=torch.full_like(x.sinks, -1e4))


def _no_slopes(x: VerifyInput, rounds: _Rounds) -> VerifyInput:
    if rounds.count < 2 or x.alibi_slopes is None:
        return x
    return replace(x, alibi_slopes=torch.zeros_like(x.alibi_slopes))


def _other_scales(x: VerifyInput, rounds: _Rounds) -> VerifyInput:
    if x.k_scale is None or rounds.written.isdisjoint(x.out_cache_loc.tolist()):
        return x
    return replace(x, k_scale=x.k_scale.roll(1))


def _old_edge(x: VerifyInput, rounds: _Rounds) -> VerifyInput:
    """The edge is where it was, so the window has grown by as much as the request has."""
    grown = [now - rounds.before.get(line, now) for line, now in rounds.lengths.items()]
    if x.shape.window is None or max(grown) <= 0:
        return x
    visibility = Window(width=x.shape.window + max(grown))
    return replace(x, shape=msgspec.structs.replace(x.shape, visibility=visibility))


def _attending(change: Change) -> Plant:
    def new() -> Around:
        rounds = _Rounds()

        def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Any) -> Attended:
            rounds.see(x)
            if change is not _other_scales:
                return right(change(x, rounds), *tensors)
            return _read_otherwise(right, x, change(x, rounds), *tensors)

        return around

    return lambda backend: remembering(backend, "attend", new)


def _read_otherwise(
    right: Callable[..., Attended], x: VerifyInput, other: VerifyInput, *tensors: Tensor
) -> Attended:
    """Rows are written as they should be, and read by other scales."""
    done = right(x, *tensors)
    if other is x:
        return done
    q, k, v, *caches = tensors
    assert x.k_scale is not None
    assert other.k_scale is not None
    same_codes = (k.float() * (other.k_scale / x.k_scale)[:, None]).to(k)
    wrong = right(other, q, same_codes, v, *(cache.clone() for cache in caches))
    return replace(done, out=wrong.out, lse=wrong.lse)


def _has(name: str, *fields: str) -> Applies:
    """Backends that take such layers, and whose attend is told of them."""

    def applies(backend: Backend) -> bool:
        able = "attend" in backend.stages and {"out_cache_loc", *fields} <= backend.consumes
        return able and bool(getattr(backend.capabilities, name))

    return applies


def _quantised(backend: Backend) -> bool:
    return _has("kv_dtypes", "k_scale")(backend) and "int8" in backend.capabilities.kv_dtypes


def _cuts_by_width(backend: Backend) -> bool:
    """Whether attend cuts by the width it is told."""
    return backend.name in ("direct-mask", "page-table", "topology")


_ROUND = Round(turns=(Turn(request=0),))
_TWO_ROUNDS = (Admit(request=0), Prefill(request=0), _ROUND, _ROUND)
_FORK_TWICE = script(request((-1, 0), prefix=1), steps=_TWO_ROUNDS, heads=(2, 2), kv_dtype="int8")
"""What is drafted and refused in the first round lies where the second one writes."""


@dataclass(frozen=True)
class _Wrong:
    variant: str
    says: str
    cause: str
    change: Change
    applies: Applies
    smallest: VerifyCase


_WRONG = (
    _Wrong(
        "sinks", "sinks take part in the first round only", "sinks-missing", _no_sinks,
        _has("sinks", "sinks"), script(request(prefix=1), steps=_TWO_ROUNDS, sinks=True),
    ),
    _Wrong(
        "slopes", "distances count in the first round only", "alibi-missing", _no_slopes,
        _has("alibi", "alibi_slopes"), script(request(prefix=1), steps=_TWO_ROUNDS, alibi=True),
    ),
    _Wrong(
        "scales", "where a slot is written anew, keys are read by the scale of the next head",
        "kv-scale-of-other", _other_scales, _quantised, _FORK_TWICE,
    ),
    _Wrong(
        "window", "the window begins where it would in the request's last round", "stale-plan",
        _old_edge, _cuts_by_width, script(request(prefix=1), steps=_TWO_ROUNDS, window=1),
    ),
)  # fmt: skip


FAULTS = tuple(
    Fault(
        family="layer-of-first-round",
        variant=wrong.variant,
        says=wrong.says,
        sources=(),
        stage="attend",
        identity="output",
        evidence="measured",
        cause=wrong.cause,
        smallest=wrong.smallest,
        plant=_attending(wrong.change),
        applies=wrong.applies,
    )
    for wrong in _WRONG
)
