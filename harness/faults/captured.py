"""Faults of a captured launch: what was planned for one batch is used again for the next.

They show where a launch is planned, or captured in a CUDA graph, once and run on many batches; where
every batch has a plan of its own these backends are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.failure import Identity
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.smallest import case, request

Kept = dict[str, Any]
"""What a plan keeps of the batch that it was made for."""


def kept_by_plan(
    keep: Callable[[VerifyInput], Kept], launch: Callable[[VerifyInput, Kept], VerifyInput]
) -> Plant:
    """Plants a plan that keeps this, and an attend that is handed `launch` of its input and of that.

    For backends whose plan, if they have one, gives its input back.
    """

    def plant(backend: Backend) -> Backend:
        def make() -> Any:
            instance = backend.make()
            plan, right = getattr(instance, "plan", lambda x: x), instance.attend

            def attend(state: tuple[VerifyInput, Kept], *tensors: Tensor) -> Any:
                return right(launch(*state), *tensors)

            instance.plan, instance.attend = lambda x: (plan(x), keep(x)), attend
            return instance

        return replace(backend, make=make)

    return plant


def frozen(*names: str) -> Plant:
    """These fields stay as they were planned."""

    def keep(x: VerifyInput) -> Kept:
        return {n: getattr(x, n).clone() for n in names if getattr(x, n) is not None}

    return kept_by_plan(keep, lambda x, kept: replace(x, **kept))


def _padding_frozen() -> Plant:
    """Padded rows go where the rows at their places went."""

    def launch(x: VerifyInput, kept: Kept) -> VerifyInput:
        slots = x.out_cache_loc
        padded = (slots < 0) | (slots == x.kv.pad_slot)
        return replace(x, out_cache_loc=torch.where(padded, kept["slots"], slots))

    return kept_by_plan(lambda x: {"slots": x.out_cache_loc.clone()}, launch)


def _longest_frozen() -> Plant:
    """No list is read further than the longest one that was there."""

    def launch(x: VerifyInput, kept: Kept) -> VerifyInput:
        assert x.cache_seqlens is not None
        return replace(x, cache_seqlens=x.cache_seqlens.clamp(max=kept["longest"]))

    def keep(x: VerifyInput) -> Kept:
        assert x.cache_seqlens is not None
        return {"longest": int(x.cache_seqlens.max())}

    return kept_by_plan(keep, launch)


def _asks() -> Plant:
    """How wide a launch is, the host finds out each time."""

    def launch(x: VerifyInput, kept: Kept) -> VerifyInput:
        assert int(x.seq_lens.max()) >= 0
        return x

    return kept_by_plan(lambda x: {}, launch)


def _capturable(*names: str) -> Applies:
    """Of those that read such a field in attend."""

    def applies(backend: Backend) -> bool:
        can = backend.capabilities.capturable and "attend" in backend.stages
        return can and set(names) <= backend.consumes

    return applies


@dataclass(frozen=True)
class _Wrong:
    variant: str
    says: str
    plant: Plant
    applies: Applies
    identity: Identity
    sources: tuple[str, ...]
    family: str = "baked-at-capture"
    cause: str = "baked-at-capture"


_BY_PAGES = ("page_table", "cache_seqlens")

_WRONG = (
    _Wrong(
        "lengths", "keys are counted as they were when the launch was captured",
        frozen("seq_lens", "cache_seqlens"), _capturable(*_BY_PAGES), "visibility",
        ("vllm-project/vllm#19106", "vllm-project/vllm#44868"),
    ),
    _Wrong(
        "longest", "no list is read further than the longest of the batch that was captured",
        _longest_frozen(), _capturable(*_BY_PAGES), "visibility",
        ("huggingface/transformers#45323",),
    ),
    _Wrong(
        "page-table", "keys are read where the table named them at capture",
        frozen("page_table"), _capturable(*_BY_PAGES), "visibility", ("B091",),
    ),
    _Wrong(
        "lists", "bounds of lists are those of the batch that was captured",
        frozen("kv_indptr"), _capturable("kv_indptr", "kv_indices"), "visibility",
        ("sgl-project/sglang#37975",),
    ),
    _Wrong(
        "mask", "rows see each other as in the tree that was captured",
        frozen("custom_mask", "mask_indptr"), _capturable("custom_mask", "mask_indptr"),
        "visibility", ("B028", "vllm-project/vllm#44868"),
    ),
    _Wrong(
        "positions", "the window is cut by positions of the batch that was captured",
        frozen("positions"), _capturable("positions"), "position",
        ("B014", "sgl-project/sglang#10892"),
    ),
    _Wrong(
        "slots", "rows are written where those of the captured batch were",
        frozen("out_cache_loc"), _capturable("out_cache_loc"), "kv",
        ("lightseekorg/tokenspeed#667",),
    ),
    _Wrong(
        "padding", "padded rows are written where real rows of the captured batch were",
        _padding_frozen(), _capturable("out_cache_loc"), "kv", ("B051", "B052"),
    ),
    _Wrong(
        "", "attend asks the device how long the longest request is, and says that it is capturable",
        _asks(), _capturable(), "contract", ("InfiniTensor/InfiniLM#540",),
        "host-decides", "host-decides",
    ),
)  # fmt: skip

_SMALLEST = {"positions": case(request(), window=3)}
"""Where it takes more than a node: other batches are larger anyway."""


def _fault(wrong: _Wrong) -> Fault:
    return Fault(
        family=wrong.family,
        variant=wrong.variant,
        says=wrong.says,
        sources=wrong.sources,
        stage="attend",
        identity=wrong.identity,
        evidence="measured",
        cause=wrong.cause,
        smallest=_SMALLEST.get(wrong.variant, case(request())),
        plant=wrong.plant,
        applies=wrong.applies,
    )


FAULTS = tuple(map(_fault, _WRONG))
