"""Faults of what a commit returns: where the next round begins, and with which token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from treeproof.contract.inputs import Committed
from treeproof.faults.moves import Moves, commits, returning, tokens_at
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

_PAIR = case(request((-1, 0)))
"""Its only draft is accepted in one round, and missed in the other."""


def _boundary_off(by: int) -> Callable[[Moves, Committed], Committed]:
    return lambda m, done: replace(done, seq_lens=done.seq_lens + by)


def _rows(m: Moves) -> Tensor:
    """(B,) rows of each request in the launch."""
    firsts = m.accepted.accept_index.new_tensor(m.firsts)
    return firsts[1:] - firsts[:-1]


def _all_rows_accepted(m: Moves, done: Committed) -> Committed:
    return replace(done, seq_lens=m.x.seq_lens + _rows(m))


def _all_levels_accepted(m: Moves, done: Committed) -> Committed:
    return replace(done, seq_lens=m.x.seq_lens + m.x.spec_steps + 1)


def _longest_of_batch(m: Moves, done: Committed) -> Committed:
    return replace(done, seq_lens=m.x.seq_lens + m.accepted.accept_len.max())


def _not_moved(m: Moves, done: Committed) -> Committed:
    return replace(done, seq_lens=m.x.seq_lens.clone())


def _last_draft_again(m: Moves, done: Committed) -> Committed:
    """The rollback is one short: the last accepted draft is the next root once more."""
    again = m.accepted.accept_len > 1
    last = tokens_at(m.accepted, (m.accepted.accept_len - 2).clamp(min=0))
    return Committed(
        seq_lens=done.seq_lens - again.long(), next_root=last.where(again, done.next_root)
    )


def _first_token(m: Moves, done: Committed) -> Committed:
    return replace(done, next_root=m.accepted.tokens[:, 0].clone())


def _last_column(m: Moves, done: Committed) -> Committed:
    return replace(done, next_root=m.accepted.tokens[:, -1].clone())


def _of_neighbour(m: Moves, done: Committed) -> Committed:
    return replace(done, next_root=done.next_root.roll(1))


def _stride_of_rows(m: Moves, done: Committed) -> Committed:
    flat = m.accepted.tokens.flatten()
    at = m.accepted.accept_index[:, 0] + m.accepted.accept_len - 1
    return replace(done, next_root=flat[at.clamp(max=len(flat) - 1)])


def _bumped_in_place(m: Moves, done: Committed) -> Committed:
    m.x.seq_lens.add_(m.accepted.accept_len)
    return done


_WRONG: tuple[Wrong[Callable[[Moves, Committed], Committed]], ...] = (
    Wrong(
        "boundary-off-by-one", "up", "the new boundary counts the bonus, which has no KV yet",
        "boundary-off-by-one", _boundary_off(1), case(request()), ("B055",),
    ),
    Wrong(
        "boundary-off-by-one", "down", "the new boundary leaves the root out",
        "boundary-off-by-one", _boundary_off(-1), case(request()), ("B055",),
    ),
    Wrong(
        "boundary-optimistic", "all-rows", "the boundary moves by all rows, accepted or not",
        "boundary-optimistic", _all_rows_accepted, _PAIR, ("B084",),
    ),
    Wrong(
        "boundary-optimistic", "all-levels", "the boundary moves by as many rows as levels",
        "boundary-optimistic", _all_levels_accepted, case(request()), ("B084",),
    ),
    Wrong(
        "boundary-optimistic", "longest-of-batch", "every boundary moves as the farthest one does",
        "boundary-optimistic", _longest_of_batch, case(request(), request((-1, 0))), ("B084",),
    ),
    Wrong(
        "boundary-not-moved", "", "the boundary stays where it was before the round",
        "unknown", _not_moved, case(request()), ("Ascend/sglang#141",),
    ),
    Wrong(
        "accepted-again", "", "the last accepted draft is the next root, one column too early",
        "boundary-off-by-one", _last_draft_again, _PAIR, ("B055",),
    ),
    Wrong(
        "next-root", "first-token", "the next root is the first token emitted, not the last",
        "next-root-not-bonus", _first_token, _PAIR, ("sgl-project/sglang#26866",),
    ),
    Wrong(
        "next-root", "last-column", "the next root is read from the end of the padded line",
        "next-root-not-bonus", _last_column, case(request()), ("sgl-project/sglang#26866",),
    ),
    Wrong(
        "next-root", "of-neighbour", "a request goes on with the bonus of the one before it",
        "next-root-not-bonus", _of_neighbour, case(request(), request()), ("B090",),
    ),
    Wrong(
        "next-root", "stride", "lines of the token table are taken to be as wide as the tree",
        "next-root-not-bonus", _stride_of_rows, case(request(), request()),
        ("sgl-project/sglang#15360", "sgl-project/sglang#26866"),
    ),
    Wrong(
        "boundary-in-place", "", "the lengths that were handed in are bumped as well",
        "mutates-input", _bumped_in_place, case(request()), ("sgl-project/sglang#25015",),
        "contract",
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG, stage="commit", identity="kv", evidence="measured", plant=returning, applies=commits
)
