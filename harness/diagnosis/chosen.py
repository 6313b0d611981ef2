"""What is selected out of draft pools; statements are other ways to choose, or to look up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.oracles.select import best_candidates
from treeproof.properties.selecting import Pool, pools


@dataclass(frozen=True)
class Chosen:
    """Of one pool, a line a request: pool indices, their tokens, and the parents that the list names;
    -1 below the root and where it names none."""

    index: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    parents: tuple[tuple[int, ...], ...]


Select = Callable[[Pool], Chosen]
"""What a selection makes of a pool."""
Line = Callable[[Pool, int], tuple[int, ...]]
"""Pool indices out of one line."""
Token = Callable[[Pool, int, int], int]
"""The token of a candidate of a line."""


def best(given: Pool, line: int) -> tuple[int, ...]:
    return best_candidates(given.pool.scores[line].tolist(), given.num_rows - 1).pool_index


def true_token(given: Pool, line: int, index: int) -> int:
    return int(given.tokens[line, index])


def selecting(choose: Line = best, token: Token = true_token) -> Select:
    """A selection that chooses so, and looks its tokens up so."""

    def select(given: Pool) -> Chosen:
        index = tuple(choose(given, line) for line in range(len(given.requests)))
        return Chosen(
            index,
            tuple(tuple(token(given, b, s) for s in line) for b, line in enumerate(index)),
            parents_of(given, index),
        )

    return select


def parents_of(given: Pool, index: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    topk = given.pool.topk
    return tuple(
        tuple(-1 if s < topk else held[s // topk] for s in line)
        for line, held in zip(index, given.pool.parents.tolist(), strict=True)
    )


the_best: Select = selecting()
"""The right one; of equal candidates, it takes the earlier."""


@lru_cache(maxsize=64)
def select_all(select: Select, case: VerifyCase, able: Capabilities) -> tuple[Chosen, ...]:
    """What is selected out of every pool that a stage is tried on."""
    return tuple(select(given) for given in pools(case, mapped=able.draft_vocabulary))
