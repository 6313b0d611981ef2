"""Faults of memory layout: a cache taken for contiguous that is a view of something larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request


def _dense(cache: Tensor) -> Tensor:
    """The memory from where the cache begins, as if its slots lay one after another."""
    strides = (cache[0].numel(), cache.shape[2], 1)
    return cache.as_strided(cache.shape, strides, cache.storage_offset())


def _reads_densely(
    right: Callable[..., Any], x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor
) -> Any:
    done = right(x, q, k, v, *(_dense(cache).clone() for cache in caches))
    right(x, q, k, v, *caches)  # what is written is written rightly
    return done


def _writes_densely(
    right: Callable[..., Any], x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor
) -> Any:
    before = [cache.clone() for cache in caches]
    done = right(x, q, k, v, *caches)
    for cache, was in zip(caches, before, strict=True):
        written = cache.clone()
        cache.copy_(was)
        rows = x.out_cache_loc[x.out_cache_loc >= 0]
        _dense(cache)[rows] = written[rows]
    return done


def _writes_beside(
    right: Callable[..., Any], x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor
) -> Any:
    done = right(x, q, k, v, *caches)
    for cache in caches:
        beyond = cache.storage_offset() + cache[0].numel()
        if cache.stride(0) > 2 * cache[0].numel():  # else there is no other layer
            rows = x.out_cache_loc[x.out_cache_loc >= 0]
            cache.as_strided(cache.shape, cache.stride(), beyond)[rows] = cache[rows]
    return done


def _moves_densely(
    right: Callable[..., Any], x: VerifyInput, accepted: Any, *caches: Tensor
) -> Any:
    return right(x, accepted, *(_dense(cache) for cache in caches))


def _layered(stage: str) -> Callable[[Backend], bool]:
    def applies(backend: Backend) -> bool:
        taken = {"layered", "interleaved"} <= set(backend.capabilities.cache_layouts)
        return taken and stage in backend.stages and "out_cache_loc" in backend.consumes

    return applies


FAULTS = (
    Fault(
        family="strides-ignored",
        variant="reads",
        says="keys are read as if the cache were contiguous, and K and V of a slot lie side by side",
        sources=("ROCm/aiter#3498",),
        stage="attend",
        identity="visibility",
        evidence="measured",
        cause="unknown",
        smallest=case(request(prefix=1), layout={"storage": "interleaved"}),
        plant=lambda backend: wrapped(backend, "attend", _reads_densely),
        applies=_layered("attend"),
    ),
    Fault(
        family="strides-ignored",
        variant="writes",
        says="rows are written as if the cache were contiguous, and it is one layer of many",
        sources=("ROCm/aiter#4531",),
        stage="attend",
        identity="kv",
        evidence="measured",
        cause="unknown",
        smallest=case(request(), layout={"storage": "layered"}),
        plant=lambda backend: wrapped(backend, "attend", _writes_densely),
        applies=_layered("attend"),
    ),
    Fault(
        family="strides-ignored",
        variant="commit",
        says="the accepted path is moved as if the cache were contiguous",
        sources=("LMCache/LMCache#2375",),
        stage="commit",
        identity="kv",
        evidence="measured",
        cause="unknown",
        smallest=case(request(FORK), layout={"storage": "layered"}),
        plant=lambda backend: wrapped(backend, "commit", _moves_densely),
        applies=_layered("commit"),
    ),
    Fault(
        family="other-layer-written",
        says="rows are written into the next layer's cache as well",
        sources=(),
        stage="attend",
        identity="kv",
        evidence="measured",
        cause="unknown",
        smallest=case(request(), layout={"storage": "layered"}),
        plant=lambda backend: wrapped(backend, "attend", _writes_beside),
        applies=_layered("attend"),
    ),
)
