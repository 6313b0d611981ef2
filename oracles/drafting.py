"""What a branch of a drafting phase reads, and where its tokens stand.

A drafting phase runs the drafter `steps` times on `topk` branches. A branch is a beam slot and not a
path: its step s continues what that slot did in steps 0 to s - 1, whatever candidate fills it now.
(SGLang's `EagleDraftWorker.draft_forward`.)
"""

from __future__ import annotations

from dataclasses import dataclass

from treeproof.oracles.traversal import Walk


@dataclass(frozen=True)
class BranchStep:
    """One step of one branch."""

    position: int
    prefix: range
    """Columns of the prefix that it reads."""
    own: range
    """Steps of its own branch that it reads, itself the last."""


def branch_step(prefix_len: int, step: int) -> BranchStep:
    """Step `step` of any branch, the first being 0, behind `prefix_len` keys.

    The bonus, which the drafter has read with the prefix, has no position of its own here: the first
    drafted token stands at `prefix_len`.
    """
    if prefix_len < 0 or step < 0:
        raise ValueError(f"prefix_len is {prefix_len}, step {step}: accepted are 0 and more")
    return BranchStep(prefix_len + step, range(prefix_len), range(step + 1))


@dataclass(frozen=True)
class Entry:
    """One entry of what the drafter runs on after a step: a hidden state with a token."""

    node: int
    """Whose hidden state it is."""
    token: int
    """What was emitted after that node."""
    position: int
    """Its logical index, and the column that the drafter's key goes to."""


def extension(prefix_len: int, walk: Walk) -> tuple[Entry, ...]:
    """Entries of an accepted path: each node's hidden state with the token that follows it.

    The drafter predicts from what the target knew before a token and from the token itself, so the
    two are one step apart. All keys that it wrote along the path while it drafted are written anew.
    """
    return tuple(
        Entry(node, token, prefix_len + j)
        for j, (node, token) in enumerate(zip(walk.nodes, walk.tokens, strict=True))
    )
