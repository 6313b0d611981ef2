"""A drafting phase as a right stage may lay it out, in slots; statements are changes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from treeproof.contract.case import VerifyCase
from treeproof.contract.ledger import token_table
from treeproof.generate.drafting import DraftScene, draft_scene

Grid = tuple[tuple[int, ...], ...]
"""(S, B*k)."""
Lists = tuple[tuple[tuple[int, ...], ...], ...]
"""(S, B*k) lists of slots."""


@dataclass(frozen=True)
class Phase:
    """What a drafting phase showed, or would show; None: the stage made no such field.

    `lists` and `pages` are the slots that each form of table names, in logical order. `held`: slot to
    the slots whose K and V it holds after the stage, where that is not itself.
    """

    positions: Grid | None
    slots: Grid | None
    lists: Lists | None
    pages: Lists | None
    held: frozenset[tuple[int, int, int]]

    def as_far_as(self, other: Phase) -> Phase:
        """The fields that `other` has as well."""
        names = ("positions", "slots", "lists", "pages")
        return replace(
            self,
            **{name: None for name in names if getattr(other, name) is None},  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Branch:
    """One branch-row in columns of its request: `home` is the first of its own page, `first` that of
    its first token."""

    b: int
    t: int
    prefix: int
    whole: int
    home: int
    first: int


@dataclass(frozen=True, eq=False)
class Ways:
    """The scene of a case, and what a phase is on it for a choice of lines, slots and lengths."""

    scene: DraftScene

    @property
    def steps(self) -> range:
        return range(self.scene.num_steps)

    @property
    def rows(self) -> tuple[Branch, ...]:
        k = self.scene.topk
        return tuple(self._branch(b, t) for b in range(self.scene.batch) for t in range(k))

    def _branch(self, b: int, t: int) -> Branch:
        page, k, steps = self.scene.layout.page_size, self.scene.topk, self.scene.num_steps
        prefix = self.scene.prefix_lens[b]
        whole = prefix // page * page
        if page == 1 or k == 1:
            return Branch(
                b, t, prefix, whole, prefix + t * steps - prefix % page, prefix + t * steps
            )
        own = -(-(prefix - whole + steps) // page) * page
        return Branch(b, t, prefix, whole, whole + t * own, whole + t * own + prefix - whole)

    @property
    def table(self) -> tuple[tuple[int, ...], ...]:
        scene = self.scene
        found = token_table(scene.layout, scene.slots, scene.request_slots)
        return tuple(map(tuple, found.tolist()))

    def phase(self, lines: Sequence[int]) -> Phase:
        """As the lines of the token table say, one a request."""
        table, rows = self.table, self.rows
        line = [table[lines[r.b]] for r in rows]
        held = {
            (of[r.home + i], of[r.whole + i], of[r.whole + i])
            for r, of in zip(rows, line, strict=True)
            for i in range(r.prefix - r.whole)
            if r.home > r.whole
        }
        return Phase(
            positions=tuple(tuple(r.prefix + s for r in rows) for s in self.steps),
            slots=tuple(
                tuple(of[r.first + s] for r, of in zip(rows, line, strict=True)) for s in self.steps
            ),
            lists=tuple(
                tuple(
                    (*of[: r.prefix], *of[r.first : r.first + s + 1])
                    for r, of in zip(rows, line, strict=True)
                )
                for s in self.steps
            ),
            pages=tuple(
                tuple(
                    (*of[: r.whole], *of[r.home : r.first + s + 1])
                    for r, of in zip(rows, line, strict=True)
                )
                for s in self.steps
            ),
            held=frozenset(held),
        )


Draft = Callable[[Ways], Phase]
"""What a stage lays out on a scene."""


def as_allotted(ways: Ways) -> Phase:
    """The right one: each request by its own line of the token table."""
    return ways.phase(ways.scene.request_slots)


@lru_cache(maxsize=64)
def ways_of(case: VerifyCase) -> Ways:
    return Ways(draft_scene(case))
