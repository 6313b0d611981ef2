"""Faults of what lives by the slots beside keys and values: a commit that moves only these rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.faults.fault import Plant
from treeproof.faults.moves import Commit, Moves, commits, move
from treeproof.faults.plant import Around, remembering
from treeproof.faults.smallest import FORK, case, request, script
from treeproof.faults.wrong import Wrong, faults_of


@dataclass
class _Steps:
    """The last commit, and the one before it: a step has as many calls as there are pools."""

    last: tuple[Tensor, ...] = ()
    lengths: Tensor | None = None
    """Of the last step, and of the one before."""
    lengths_before: Tensor | None = None
    boundary: Tensor | None = None
    boundary_before: Tensor | None = None

    def goes_on(self, x: VerifyInput, accepted: Accepted) -> bool:
        """Whether this call moves another pool in the same step."""
        now = (x.out_cache_loc, x.seq_lens, accepted.accept_index)
        same = len(self.last) == len(now) and all(map(torch.equal, self.last, now))
        if not same:
            self.last = tuple(t.clone() for t in now)
            self.lengths_before, self.lengths = self.lengths, accepted.accept_len.clone()
            self.boundary_before, self.boundary = self.boundary, x.seq_lens.clone()
        return same


Other = Callable[[Moves, _Steps], None]
"""How a further pool is moved."""


def _beside(wrong: Other) -> Plant:
    def new() -> Around:
        steps = _Steps()

        def around(
            right: Commit, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
        ) -> Committed:
            if not steps.goes_on(x, accepted):
                return right(x, accepted, k_cache, v_cache)
            done = right(x, accepted, k_cache.clone(), v_cache.clone())
            wrong(Moves(x, accepted, k_cache, v_cache), steps)
            return done

        return around

    return lambda backend: remembering(backend, "commit", new)


def _left_behind(m: Moves, steps: _Steps) -> None:
    """Nothing else moves."""


def _old_lengths(m: Moves, steps: _Steps) -> None:
    most = m.accepted.accept_len if steps.lengths_before is None else steps.lengths_before
    if len(most) != len(m.paths):
        most = m.accepted.accept_len
    kept = [j < n for path, n in zip(m.paths, most.tolist(), strict=True) for j in range(len(path))]
    _move(m.caches, (p for p, keep in zip(_pairs(m), kept, strict=True) if keep))


def _old_boundary(m: Moves, steps: _Steps) -> None:
    before = steps.boundary_before
    if before is None or len(before) != len(m.x.seq_lens):
        before = m.x.seq_lens
    lines = m.x.req_to_token[m.x.request_slots].tolist()
    starts = zip(lines, before.tolist(), m.paths, strict=True)
    targets = [
        line[start + j] if start + j < len(line) else -1
        for line, start, path in starts
        for j in range(len(path))
    ]
    for cache in m.caches:
        move(cache, m.sources, targets)


def _by_page(m: Moves, steps: _Steps) -> None:
    size = m.x.kv.page_size
    pages = [cache.view(-1, size, *cache.shape[1:]) for cache in m.caches]
    _move(pages, (pair for pair in _pairs(m) if max(pair) < len(pages[0])))


def _pairs(m: Moves) -> list[tuple[int, int]]:
    return list(zip(m.sources, m.targets, strict=True))


def _move(caches: Iterable[Tensor], pairs: Iterable[tuple[int, int]]) -> None:
    kept = list(pairs)
    for cache in caches:
        move(cache, [source for source, _ in kept], [target for _, target in kept])


def _reads_table(backend: Backend) -> bool:
    return commits(backend) and {"req_to_token", "request_slots"} <= backend.consumes


_ROUND = Round(turns=(Turn(request=0),))
_TWO_ROUNDS = script(
    request(prefix=1), steps=(Admit(request=0), Prefill(request=0), _ROUND, _ROUND)
)
_SHORT_THEN_LONG = case(request((-1, 0, 0, 2)))
"""A path of two rows is accepted before one of three, whose last row moves."""

_WRONG: tuple[Wrong[Other], ...] = (
    Wrong(
        "companion", "left-behind", "a commit moves the pool that it is handed first, and no other",
        "companion-left-behind", _left_behind, case(request(FORK)), ("B072", "B071"),
    ),
    Wrong(
        "companion", "by-page", "further pools lie by pages, and are given slots where they take pages",
        "companion-by-page", _by_page, case(request(FORK), page_size=2, spare_pages=3), ("B069",),
    ),
    Wrong(
        "companion", "by-old-lengths", "further pools move as many rows as the commit before accepted",
        "companion-by-old-lengths", _old_lengths, _SHORT_THEN_LONG, ("B072",),
    ),
    Wrong(
        "companion", "from-old-boundary",
        "further pools are moved to where the round before began", "companion-by-old-lengths",
        _old_boundary, _TWO_ROUNDS, ("B072", "B084"), applies=_reads_table,
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG, stage="commit", identity="kv", evidence="measured", plant=_beside, applies=commits
)
