"""The tensors of one verify step, as the oracle takes them; what cannot be used is a ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.case import DTYPES, Request
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.properties.scene import Scene

Slots = Sequence[Sequence[int]]


@dataclass(frozen=True)
class StepTensors:
    """What the rows of a step hold and read, on the CPU.

    `q` (T, Hq, D), `k` (T, Hkv, D), `v` (T, Hkv, Dv) in row order; `k_prefix[b]` (P_b, Hkv, D) and
    `v_prefix[b]` (P_b, Hkv, Dv) in logical order.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    k_prefix: tuple[Tensor, ...]
    v_prefix: tuple[Tensor, ...]

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        q: Any,
        k: Any,
        v: Any,
        prefix: tuple[Any, Any],
        caches: tuple[Any, Any],
        slots: Slots | None,
    ) -> StepTensors:
        rows = sum(request.num_rows for request in requests)
        q, k, v = (_rows(name, t, rows) for name, t in (("q", q), ("k", k), ("v", v)))
        if str(q.dtype).removeprefix("torch.") not in DTYPES:
            raise ValueError(f"q has dtype {q.dtype}: accepted are {', '.join(DTYPES)}")
        for name, tensor in (("k", k), ("v", v)):
            if tensor.dtype != q.dtype:
                raise ValueError(f"{name} has dtype {tensor.dtype}: q has {q.dtype}")
        if k.shape[1] != v.shape[1]:
            raise ValueError(f"k has {k.shape[1]} heads and v {v.shape[1]}: as many are accepted")
        k_prefix, v_prefix = (
            _prefixes(name, requests, given, cache, slots, like)
            for name, given, cache, like in zip("kv", prefix, caches, (k, v), strict=True)
        )
        return cls(q, k, v, k_prefix, v_prefix)

    def truth(self, scene: Scene) -> PathResult:
        """The oracle's result for the nodes of all requests, one request after the other."""
        found = []
        for b, request in enumerate(scene.case.requests):
            rows = scene.case.qo_indptr[b] + torch.tensor(request.row_of_node)
            tensors = (self.q[rows], self.k_prefix[b], self.v_prefix[b], self.k[rows], self.v[rows])
            try:
                shape = scene.case.shape
                found.append(attend_paths(request.tree, request.prefix_len, shape, *tensors))
            except ValueError as error:
                raise ValueError(f"request {b}: {error}") from None
        columns = zip(*(vars(one).values() for one in found), strict=True)
        return PathResult(*map(torch.cat, columns))


def cpu_tensor(name: str, value: Any) -> Tensor:
    """A tensor, array or nested list as a tensor on the CPU."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is {type(value).__name__}, no tensor: {error}") from None


def _rows(name: str, value: Any, rows: int) -> Tensor:
    if value is None:
        raise ValueError(f"out needs {name}, which was not given")
    tensor = cpu_tensor(name, value)
    if tensor.dim() != 3 or len(tensor) != rows:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: accepted is (rows, heads, head dim) with {rows} rows"
        )
    return tensor


def flat_cache(name: str, value: Any) -> Tensor:
    """A cache (num_slots, Hkv, D), or in pages (num_pages, page_size, Hkv, D), by slots."""
    tensor = cpu_tensor(name, value)
    if tensor.dim() == 4:
        return tensor.flatten(0, 1)
    if tensor.dim() != 3:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: accepted are (slots, heads, head dim) and "
            "(pages, page size, heads, head dim)"
        )
    return tensor


def _prefixes(
    letter: str,
    requests: Sequence[Request],
    given: Any,
    cache: Any,
    slots: Slots | None,
    like: Tensor,
) -> tuple[Tensor, ...]:
    """The prefix keys (or values) of each request, given as they are or looked up in the cache."""
    name = f"{letter}_prefix"
    if given is not None:
        parts = _split(name, given, len(requests))
        return tuple(cpu_tensor(f"{name}[{b}]", part) for b, part in enumerate(parts))
    if not any(request.prefix_len for request in requests):
        return (like[:0],) * len(requests)
    if cache is None or slots is None:
        raise ValueError(f"out needs {name}, or {letter}_cache and slots, where there is a prefix")
    flat = flat_cache(f"{letter}_cache", cache)
    found = []
    for b, request in enumerate(requests):
        # Evicted columns, -1, are read by no row: any number will do.
        index = torch.tensor(slots[b][: request.prefix_len], dtype=torch.int64).clamp(min=0)
        if len(index) and int(index.max()) >= len(flat):
            raise ValueError(
                f"slots[{b}] names slot {int(index.max())}: {letter}_cache has {len(flat)}"
            )
        found.append(flat[index])
    return tuple(found)


def _split(name: str, given: Any, requests: int) -> list[Any]:
    if isinstance(given, list | tuple):
        parts = list(given)
    else:
        tensor = cpu_tensor(name, given)
        parts = list(tensor) if tensor.dim() == 4 else [tensor]
    if len(parts) != requests:
        raise ValueError(f"{name} has {len(parts)} entries for {requests} requests: one each")
    return parts
