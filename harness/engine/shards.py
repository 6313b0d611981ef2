"""A run in n shards, one a machine or a GPU: which parts each has, decided by the parts alone.

Every shard works out the same division for itself, from what the run is asked to draw and from nothing
that it finds where it runs: not its backends, nor its cores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

MOST_SHARDS = 1024
_KIN_A_SHARD = 4
"""So many kin a shard are enough to balance them without taking any apart."""

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Shard `number`, from 1, of `count`."""

    number: int
    count: int

    @classmethod
    def read(cls, text: object) -> Shard:
        """Of text such as 2/4. Raises ValueError saying what is accepted."""
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", str(text), re.ASCII)
        number, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= count <= MOST_SHARDS:
            raise ValueError(f"accepted are 1/n to n/n, such as 2/4, with n up to {MOST_SHARDS}")
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Shard(1, 1)


def share(
    parts: Sequence[T], shard: Shard, cost: Callable[[T], float], kin: Callable[[T], str]
) -> list[T]:
    """The parts of this shard, in the order of all.

    The dearest go first, each to the shard that has least. Parts that are `kin` go together where there
    are enough of those: what is compiled for one of them serves the others.
    """
    families: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        families.setdefault(kin(part), []).append(i)
    together = list(families.values())
    if len(together) < _KIN_A_SHARD * shard.count:
        together = [[i] for i in range(len(parts))]
    costs = [sum(cost(parts[i]) for i in family) for family in together]
    loads, own = [0.0] * shard.count, set[int]()
    for at in sorted(range(len(together)), key=lambda at: (-costs[at], at)):
        least = loads.index(min(loads))
        loads[least] += costs[at]
        if least == shard.number - 1:
            own.update(together[at])
    return [part for i, part in enumerate(parts) if i in own]
