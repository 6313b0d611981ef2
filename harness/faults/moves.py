"""What a commit has to move, and commits that move something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.faults.fault import Plant
from treeproof.faults.plant import wrapped

Commit = Callable[[VerifyInput, Accepted, Tensor, Tensor], Committed]
"""`commit` as it was."""


@dataclass(frozen=True)
class Moves:
    """One commit: which rows are accepted, and where the caches are, still as attend left them."""

    x: VerifyInput
    accepted: Accepted
    k_cache: Tensor
    v_cache: Tensor

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_cache, self.v_cache

    @property
    def paths(self) -> list[list[int]]:
        """Rows of the batch on each request's accepted path, the root first."""
        return [[row for row in path if row >= 0] for path in self.accepted.accept_index.tolist()]

    @property
    def firsts(self) -> list[int]:
        """Row of the batch that each request begins with, and how many rows there are in all."""
        return [*self.accepted.accept_index[:, 0].tolist(), len(self.x.out_cache_loc)]

    @property
    def sources(self) -> list[int]:
        """Slot of every accepted row, request after request."""
        return self.slots([row for path in self.paths for row in path])

    @property
    def targets(self) -> list[int]:
        """Slot that each of `sources` belongs in: that of the request's j-th row."""
        starts = zip(self.firsts, self.paths, strict=False)
        return self.slots([first + j for first, path in starts for j in range(len(path))])

    def slots(self, rows: list[int]) -> list[int]:
        """The slot of each row of the batch."""
        slots: list[int] = self.x.out_cache_loc[rows].tolist()
        return slots


def move(cache: Tensor, sources: list[int], targets: list[int]) -> None:
    """As a right commit does it: all loads before all stores."""
    cache[targets] = cache[sources]


def moving(wrong: Callable[[Moves], None]) -> Plant:
    """A plant: the caches are moved by `wrong`, the boundary and the next root are right."""

    def around(
        right: Commit, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        done = right(x, accepted, k_cache.clone(), v_cache.clone())
        wrong(Moves(x, accepted, k_cache, v_cache))
        return done

    return lambda backend: wrapped(backend, "commit", around)


def returning(wrong: Callable[[Moves, Committed], Committed]) -> Plant:
    """A plant: the caches are moved rightly, and what is returned is made of it by `wrong`."""

    def around(
        right: Commit, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        done = right(x, accepted, k_cache, v_cache)
        return wrong(Moves(x, accepted, k_cache, v_cache), done)

    return lambda backend: wrapped(backend, "commit", around)


def commits(backend: Backend) -> bool:
    """Whether a backend has a commit that looks at the slots of rows."""
    return "commit" in backend.stages and "out_cache_loc" in backend.consumes


def tokens_at(accepted: Accepted, column: Tensor) -> Tensor:
    """(B,) the token of each request at `column` (B,)."""
    return torch.gather(accepted.tokens, 1, column[:, None])[:, 0]
