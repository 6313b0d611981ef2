"""Faults of a random generator behind a right sampling: a coin that is drawn once and used for several.

The backend they are planted into draws no coins; it is given some by a generator in front of it, as an
engine has one, and only that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import TARGET_ONLY, Sampling
from treeproof.faults.plant import wrapped
from treeproof.faults.samples import Sample
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

Coins = Callable[[VerifyInput, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Coins of rows (T,) and of last tokens (B,), as they are drawn, to those that are used."""


@dataclass(frozen=True)
class _Generator:
    used: Coins = lambda x, rows, last: (rows, last)
    seeded: bool = True

    def before(self, backend: Backend) -> Backend:
        drawing = wrapped(backend, "sample", self._around)
        able = msgspec.structs.replace(backend.capabilities, own_coins=True)
        return replace(drawing, capabilities=able)

    def _around(self, right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
        device, seed = given.coins.device, given.seed if self.seeded else 0
        generator = torch.Generator(device).manual_seed(seed or 0)
        rows, last = (
            torch.rand(coins.shape, generator=generator, device=device)
            for coins in (given.coins, given.final_coins)
        )
        coins, final_coins = self.used(x, rows, last)
        return right(x, replace(given, coins=coins, final_coins=final_coins, seed=None))


def _one_a_request(x: VerifyInput, rows: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    used = rows.clone()
    assert x.retrieve_index is not None
    for index in x.retrieve_index:
        of_request = index[index >= 0]
        used[of_request] = rows[of_request[0]]
    return used, last


def _one_a_batch(x: VerifyInput, rows: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Every request seeds a generator of its own, all of them alike."""
    used = rows.clone()
    assert x.retrieve_index is not None
    for index in x.retrieve_index:
        of_request = index[index >= 0]
        used[of_request] = rows[: len(of_request)]
    return used, last[:1].expand(len(last)).clone()


_WRONG = (
    Wrong(
        "generator-reused", "rows", "one draw decides at all rows of a request",
        "unknown", _Generator(_one_a_request), case(request()), ("B056",),
    ),
    Wrong(
        "generator-reused", "requests", "all requests of a batch draw the same coins",
        "unknown", _Generator(_one_a_batch), case(request()),
    ),
    Wrong(
        "generator-reused", "calls", "the generator is seeded alike in every call",
        "unknown", _Generator(seeded=False), case(request()),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="sample",
    identity="traversal",
    evidence="measured",
    plant=lambda does: does.before,
    # One backend of torch is as good as all: the fault is in front of it, and thousands of draws take an
    # interpreter minutes.
    applies=lambda backend: (
        "sample" in backend.stages
        and TARGET_ONLY in backend.capabilities.sampling
        and not backend.kernels
    ),
)
