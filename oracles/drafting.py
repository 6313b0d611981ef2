"""What a branch of a drafting phase reads, and where its tokens stand.

A drafting phase runs the drafter `steps` times on `topk` branches. A branch is a beam slot and not a
path: its step s continues what that slot did in steps 0 to s - 1, whatever candidate fills it now.
(SGLang's `EagleDraftWorker.draft_forward`.)
"""

from __future__ import annotations

from dataclasses import dataclass


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
