"""Faults of writing: after attend, the cache does not hold each row's keys and values in its slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of


@dataclass(frozen=True)
class Written:
    """One cache around a launch: as it was, and as the right attend left it; `cache` is changed."""

    x: VerifyInput
    cache: Tensor
    before: Tensor
    rows: Tensor
    """What the rows bring, padded ones included (T, Hkv, lanes)."""

    @property
    def padded(self) -> Tensor:
        """(T,) bool."""
        slots = self.x.out_cache_loc
        return (slots == -1) | (slots == self.x.kv.pad_slot)

    @property
    def homes(self) -> Tensor:
        """Slots of the real rows."""
        return self.x.out_cache_loc[~self.padded]


def _writing(*wrong: Callable[[Written], None]) -> Plant:
    """A plant: what attend wrote is changed afterwards, K by the first of `wrong`, V by the last."""

    def around(right: Callable[..., Any], x: VerifyInput, q: Tensor, *tensors: Tensor) -> Any:
        k, v, k_cache, v_cache = tensors
        before = k_cache.clone(), v_cache.clone()
        done = right(x, q, *tensors)
        wrong[0](Written(x, k_cache, before[0], k))
        wrong[-1](Written(x, v_cache, before[1], v))
        return done

    return lambda backend: wrapped(backend, "attend", around)


def _undo(w: Written, slots: Tensor) -> None:
    w.cache[slots] = w.before[slots]


def _nothing(w: Written) -> None:
    """This cache is written rightly."""


def _all_skipped(w: Written) -> None:
    _undo(w, w.homes)


def _to(slots: Callable[[Written], Tensor]) -> Callable[[Written], None]:
    """The real rows land in `slots` and not in their own."""

    def wrong(w: Written) -> None:
        held = w.cache[w.homes]
        _undo(w, w.homes)
        w.cache[slots(w)] = held

    return wrong


def _twice(w: Written) -> None:
    w.cache[(w.homes + 1) % len(w.cache)] = w.cache[w.homes]


def _first_head(w: Written) -> None:
    w.cache[w.homes, 1:] = w.before[w.homes, 1:]


def _half_of_the_lanes(w: Written) -> None:
    half = w.cache.shape[2] // 2
    w.cache[w.homes, :, half:] = w.before[w.homes, :, half:]


def _padding_to_last_slot(w: Written) -> None:
    """-1 names no slot; as an index it is the last one."""
    if w.x.kv.pad_slot == -1 and bool(w.padded.any()):
        w.cache[-1] = w.rows[w.padded][-1].to(w.cache.dtype)


def _padding_to_root(w: Written) -> None:
    if bool(w.padded.any()):
        w.cache[w.homes[0]] = w.rows[w.padded][-1].to(w.cache.dtype)


def _through_eight_bits(
    right: Callable[..., Any], x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor
) -> Any:
    squeezed = (t.to(torch.float8_e4m3fn).to(t.dtype) for t in (k, v))
    return right(x, q, *squeezed, *caches)


def _read_before_written(
    right: Callable[..., Any], x: VerifyInput, q: Tensor, *tensors: Tensor
) -> Any:
    """Attention runs over what the slots held before; the rows are written after it."""
    k, v, k_cache, v_cache = tensors
    stale = k_cache[x.out_cache_loc].to(k.dtype), v_cache[x.out_cache_loc].to(v.dtype)
    done = right(x, q, *stale, k_cache.clone(), v_cache.clone())
    right(x, q, *tensors)
    return done


def writes(backend: Backend) -> bool:
    """Whether a backend's attend writes K and V itself, and is handed a `VerifyInput`."""
    planned = "attend" in backend.stages and hasattr(backend.make, "plan")
    reads_slots = "out_cache_loc" in backend.consumes
    return (
        "attend" in backend.stages
        and backend.capabilities.stores_kv
        and reads_slots
        and not planned
    )


_ONE = case(request())
_PAIR = case(request((-1, 0)))
_SPARE = case(request(), spare_pages=1)
_PADDING = ("vllm-project/vllm#43869", "vllm-project/vllm#43810", "B086")
_STARTS_AHEAD = ("microsoft/onnxruntime-genai#2354",)

_WRONG: tuple[Wrong[Plant], ...] = (
    Wrong(
        "write-skipped", "all", "no row is written", "write-skipped", _writing(_all_skipped), _ONE,
        ("flagos-ai/vllm-plugin-FL#353",),
    ),
    Wrong(
        "write-skipped", "last-row", "the last row of the launch is not written", "write-skipped",
        _writing(lambda w: _undo(w, w.homes[-1:])), _ONE,
    ),
    Wrong(
        "write-skipped", "root", "the first row is taken to be written already", "write-skipped",
        _writing(lambda w: _undo(w, w.homes[:1])), _ONE, _STARTS_AHEAD,
    ),
    Wrong(
        "write-skipped", "every-second-row", "every second row is not written", "write-skipped",
        _writing(lambda w: _undo(w, w.homes[1::2])), _PAIR,
    ),
    Wrong(
        "one-cache-written", "k", "keys are written, values are not", "one-cache-only",
        _writing(_nothing, _all_skipped), _ONE,
    ),
    Wrong(
        "one-cache-written", "v", "values are written, keys are not", "one-cache-only",
        _writing(_all_skipped, _nothing), _ONE,
    ),
    Wrong(
        "half-written", "heads", "only the first KV head of a row is written", "write-skipped",
        _writing(_first_head), case(request(), heads=(2, 2)), ("B070",),
    ),
    Wrong(
        "half-written", "lanes", "only the first half of each head is written", "write-skipped",
        _writing(_half_of_the_lanes), _ONE, ("B070",),
    ),
    Wrong(
        "write-off-by-one", "up", "every row is written to the slot after its own",
        "slot-off-by-one", _writing(_to(lambda w: (w.homes + 1) % len(w.cache))), _SPARE,
        _STARTS_AHEAD,
    ),
    Wrong(
        "write-off-by-one", "down", "every row is written to the slot before its own",
        "slot-off-by-one", _writing(_to(lambda w: w.homes - 1)), _ONE,
        ("ekryski/mlx-swift-lm#90",),
    ),
    Wrong(
        "write-off-by-one", "next-row", "every row is written to the slot of the row after it",
        "slot-off-by-one", _writing(_to(lambda w: w.homes.roll(-1))), _PAIR,
    ),
    Wrong(
        "written-twice", "", "every row is written to its own slot and to the one after it",
        "slot-off-by-one", _writing(_twice), _SPARE,
    ),
    Wrong(
        "padding-written", "last-slot", "the slot -1 of a padded row is taken for the last one",
        "padding-written", _writing(_padding_to_last_slot),
        case(request(pad_rows=1), layout={"pad_slot": -1}), _PADDING,
    ),
    Wrong(
        "padding-written", "root", "padded rows are written over the first row",
        "padding-written", _writing(_padding_to_root), case(request(pad_rows=1)), _PADDING,
    ),
    Wrong(
        "cache-typed-for-another-model", "", "keys and values pass through 8 bits on their way",
        "unknown", lambda backend: wrapped(backend, "attend", _through_eight_bits), _ONE,
        ("B092",),
    ),
    Wrong(
        "read-before-written", "", "rows read their own slots before they are written",
        "write-skipped", lambda backend: wrapped(backend, "attend", _read_before_written), _ONE,
        ("vllm-project/vllm#41838",),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="attend",
    identity="kv",
    evidence="measured",
    plant=lambda plant: plant,
    applies=writes,
)
