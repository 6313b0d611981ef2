"""Arguments of a launch that stay where they are, while one batch after another is copied into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import TENSOR_FIELDS, VerifyInput
from treeproof.properties.probes.launch import Arguments
from treeproof.properties.probes.storage import Caches


class Buffers:
    """Each tensor of the input as large as that of the largest batch.

    What is shorter is copied to its front; behind it lies what an earlier batch left there, at first 0.
    All batches have as many rows and slots.
    """

    def __init__(self, each: Sequence[Arguments]) -> None:
        first, *_ = each
        inputs = [given.x for given in each]
        tensors: dict[str, Any] = {
            name: _as_large_as([getattr(x, name) for x in inputs]) for name in held_by(inputs)
        }
        self.x = replace(
            first.x,
            **tensors,
            topk=max(x.topk for x in inputs),
            spec_steps=max(x.spec_steps for x in inputs),
        )
        self.q, self.k, self.v = (t.clone() for t in (first.q, first.k, first.v))
        self.caches = _like(first.caches)

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the caches, as attend takes them."""
        return self.q, self.k, self.v, self.caches.k, self.caches.v

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The caches, and memory of other layers between their slots."""
        return self.caches.k, self.caches.v, *(now for now, _ in self.caches.beside)

    def clear(self) -> None:
        for name in held_by([self.x]):
            getattr(self.x, name).zero_()

    def fill(self, given: Arguments) -> None:
        for name in held_by([self.x, given.x]):
            own, new = getattr(self.x, name), getattr(given.x, name)
            own[tuple(slice(size) for size in new.shape)].copy_(new)
        for own, new in zip((self.q, self.k, self.v), (given.q, given.k, given.v), strict=True):
            own.copy_(new)
        theirs = (given.caches.k, given.caches.v, *(now for now, _ in given.caches.beside))
        for own, new in zip(self.held, theirs, strict=True):
            own.copy_(new)


def held_by(inputs: Sequence[VerifyInput]) -> list[str]:
    """Tensor fields that all of them have."""
    return [n for n in TENSOR_FIELDS if all(getattr(x, n) is not None for x in inputs)]


def _as_large_as(each: Sequence[Tensor]) -> Tensor:
    sizes = zip(*(t.shape for t in each), strict=True)
    return torch.zeros([max(size) for size in sizes], dtype=each[0].dtype, device=each[0].device)


def _like(caches: Caches) -> Caches:
    """Caches of their own that lie in memory as these do."""
    layout = caches.layout
    k, v = caches.by_slot()
    return Caches.laid(layout, k.clone(), v.clone(), torch.zeros_like(k[0]), torch.zeros_like(v[0]))
