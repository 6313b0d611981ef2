"""A small language model on every path of a tree, in float64, and how far working precision may be off.

The limit is measured on the model itself: it is run several times more with every operation off by as
much as working precision can be off there (`Errors` says how much; a product of n terms by (n + 2) u of
the summed magnitudes) in a random direction, so errors travel through layers as they do and not as
norms would let them. Three times the largest change seen is allowed: real roundings are smaller than
that from the start, for those of a sum cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.target_reading import in_a_row, on_paths
from treeproof.oracles.target_steps import Memory, Steps, with_limit


@dataclass(frozen=True)
class TargetResult:
    """In node order, float64: logits (N, vocabulary), and the limit on their errors (N, 1)."""

    logits: Tensor
    limit: Tensor


def target_logits(
    model: TargetModel,
    prefix: Sequence[int],
    tree: CandidateTree,
    tokens: Sequence[int],
    steps: Steps | None = None,
) -> TargetResult:
    """Logits after every node: the model on `prefix` and then the tokens of the node's path.

    `tokens[v]` is node v's, below `model.vocab_size`, whatever the tree itself holds. `steps`: those
    of the model, where they are not its own in float32. Raises ValueError where a token is outside
    the vocabulary.
    """
    steps = steps or Steps(model)
    return logits_behind(steps, [held_of(steps, prefix)], [tree], [tokens])


def held_of(steps: Steps, tokens: Sequence[int]) -> list[Memory]:
    """What each layer holds of a sequence from logical index 0 on."""
    nothing = [steps.nothing] * steps.model.layers
    return in_a_row(steps, tokens, 0, nothing)[1] if tokens else nothing


def logits_behind(
    steps: Steps,
    before: Sequence[Sequence[Memory]],
    trees: Sequence[CandidateTree],
    tokens: Sequence[Sequence[int]],
) -> TargetResult:
    """Logits after every node of every tree, one tree after the other.

    `before[b]`: what each layer holds of what lies before tree b. Raises ValueError as above.
    """
    x = on_paths(steps, trees, tokens, before)
    return TargetResult(*with_limit(steps.logits(x)))
