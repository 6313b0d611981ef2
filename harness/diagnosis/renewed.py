"""What a right drafter runs on over each accepted path; statements are changes of single cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treeproof.diagnosis.ground import Ground

Round = Mapping[str, tuple[tuple[int, ...], ...]]
"""`rows`, `tokens`, `positions` and `slots` of a round, a line a request, an entry an accepted row; a
row is one of the launch."""


@dataclass(frozen=True)
class Place:
    """Entry j of request b: `path` are the accepted rows of the request and `emitted` their tokens."""

    ground: Ground
    b: int
    j: int
    path: tuple[int, ...]
    emitted: tuple[int, ...]

    @property
    def first(self) -> int:
        return self.ground.case.qo_indptr[self.b]

    @property
    def prefix(self) -> int:
        return self.ground.requests[self.b].prefix_len

    def right(self, name: str) -> int:
        if name == "rows":
            return self.first + self.path[self.j]
        if name == "tokens":
            return self.emitted[self.j]
        if name == "positions":
            return self.prefix + self.j
        return self.ground.scene.ledger.columns[self.b][self.prefix + self.j]


NAMES = ("rows", "tokens", "positions", "slots")
Cell = Callable[[Place], int]
Extend = Callable[[Ground], Sequence[Round]]
"""What is made in each round of a case."""


def made(cells: Mapping[str, Cell]) -> Extend:
    """Rounds in which these fields hold other cells than right ones."""

    def line(ground: Ground, name: str, b: int, path: tuple[int, ...], told: Sequence[int]) -> tuple[int, ...]:  # fmt: skip
        places = [Place(ground, b, j, path, tuple(told)) for j in range(len(path))]
        return tuple(cells[name](p) if name in cells else p.right(name) for p in places)

    def extend(ground: Ground) -> Sequence[Round]:
        return tuple(
            {
                name: tuple(
                    line(ground, name, b, tuple(path), told)
                    for b, (path, told) in enumerate(zip(round.rows, round.emitted, strict=True))
                )
                for name in NAMES
            }
            for round in ground.rounds
        )

    return extend


as_accepted: Extend = made({})
"""The right one."""
