"""Selection of verify rows from a pool of draft candidates, in plain integers.

Two index spaces meet here. A *pool index* numbers the candidates of a drafting phase: k children of
the root, then at each later level k children of each of k beam slots, so that index s >= k is a
child of beam slot `s // k - 1` counted over all levels. A *row* numbers what is verified: row 0 is
the root, row j the j-th selected candidate in ascending pool index. (SGLang's
`organize_draft_results` and `build_tree_kernel_efficient`.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from treeproof.contract.tree import CandidateTree


@dataclass(frozen=True)
class Choice:
    """Which candidates have the best scores."""

    pool_index: tuple[int, ...]
    """Ascending."""
    tied: tuple[int, ...]
    """Candidates left out that score the same as one chosen: with them, other choices are as good."""


def best_candidates(scores: Sequence[float], count: int) -> Choice:
    """The `count` highest of the cumulative path scores; of equal ones, those of lower pool index.

    A child never scores above its parent and always has the higher pool index, so under this rule
    no candidate is chosen without its ancestors. A rule that breaks ties otherwise may do so.
    Raises ValueError on a NaN, which has no order, and where the pool is too small.
    """
    for s, score in enumerate(scores):
        if math.isnan(score):
            raise ValueError(f"scores[{s}] is NaN: accepted are numbers that can be ordered")
    if not 0 <= count <= len(scores):
        raise ValueError(f"count is {count}: accepted are 0 to {len(scores)}, the pool's size")
    ranked = sorted(range(len(scores)), key=lambda s: (-scores[s], s))
    chosen, left = ranked[:count], ranked[count:]
    tied = tuple(s for s in left if chosen and scores[s] == scores[chosen[-1]])
    return Choice(tuple(sorted(chosen)), tied)


@dataclass(frozen=True)
class Selection:
    """Selected candidates as rows. Row 0, the root, is no candidate."""

    pool_index: tuple[int, ...]
    """(N-1,) candidate of rows 1 to N-1, ascending."""
    tokens: tuple[int, ...]
    """(N-1,) their tokens."""
    parent_pool_index: tuple[int, ...]
    """(N-1,) pool index of each one's parent; -1 where that is the root."""

    @cached_property
    def parent_rows(self) -> tuple[int, ...]:
        """(N,) row of each row's parent; -1 for the root and for orphans."""
        row_of = {s: row for row, s in enumerate(self.pool_index, start=1)} | {-1: 0}
        return (-1, *(row_of.get(parent, -1) for parent in self.parent_pool_index))

    @cached_property
    def orphans(self) -> tuple[int, ...]:
        """Rows whose parent was not selected. None: every row's ancestors were selected too."""
        return tuple(row for row, parent in enumerate(self.parent_rows) if row and parent < 0)

    def tree(self, root_token: int) -> CandidateTree:
        """The tree these rows are, nodes numbered as rows. Raises ValueError naming an orphan."""
        if self.orphans:
            row = self.orphans[0]
            raise ValueError(
                f"row {row} (pool index {self.pool_index[row - 1]}) is an orphan: its parent, pool "
                f"index {self.parent_pool_index[row - 1]}, is not selected"
            )
        return CandidateTree((root_token, *self.tokens), self.parent_rows)


def selection(
    pool_index: Sequence[int], tokens: Sequence[int], parents: Sequence[int], topk: int
) -> Selection:
    """Rows of the given candidates; `tokens[s]` is the token of pool index s.

    `parents` holds -1, then the pool index behind each beam slot, level by level: entry `s // topk`
    is the parent of candidate s >= topk. Raises ValueError where indices are out of range, not
    ascending, or (a cycle otherwise) a parent does not come before its child.
    """
    above: list[int] = []
    for row, s in enumerate(pool_index, start=1):
        if not 0 <= s < len(tokens):
            raise ValueError(f"row {row} is pool index {s}: accepted are 0 to {len(tokens) - 1}")
        if row > 1 and s <= pool_index[row - 2]:
            raise ValueError(f"row {row} is pool index {s}, after {pool_index[row - 2]}")
        parent = -1 if s < topk else parents[s // topk]
        if s >= topk and not 0 <= parent < s:
            raise ValueError(
                f"parents[{s // topk}] is {parent}, for pool index {s}: accepted are 0 to {s - 1}"
            )
        above.append(parent)
    return Selection(tuple(pool_index), tuple(tokens[s] for s in pool_index), tuple(above))
