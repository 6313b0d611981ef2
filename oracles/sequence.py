"""The small language model on one plain sequence, token after token, in float64.

What a verify step's path is to a tree, this is to a whole generation: no tree, no batch, no slot. A
token sees what came before it: a list that grows by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.oracles.target_reading import in_a_row
from treeproof.oracles.target_steps import Memory, Steps, with_limit


class Continuing:
    """A sequence that goes on: what the model has read so far, and the logits after what is added."""

    def __init__(self, model: TargetModel, steps: Steps | None = None) -> None:
        """`steps`: those of the model with errors, where a limit is to be measured, or with weights
        that are not of its seed."""
        self._steps = steps or Steps(model, errors=None)
        self.past: list[Memory] = [self._steps.nothing] * model.layers

    def read(self, tokens: Sequence[int]) -> Tensor:
        """Logits (runs, n, vocabulary) after each of n more tokens, the first run without errors.

        Raises ValueError where a token is outside the vocabulary.
        """
        x, self.past = in_a_row(self._steps, tokens, len(self.past[0]), self.past)
        return self._steps.logits(x)

    def forked(self, length: int) -> Continuing:
        """Another sequence, which so far is the first `length` tokens of this one."""
        other = Continuing(self._steps.model, self._steps)
        other.past = [kept.of(slice(length)) for kept in self.past]
        return other


def continue_greedily(model: TargetModel, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that follow `prompt`, one at least long, each the likeliest after all before.

    Of equal logits the lowest token. Raises ValueError where the prompt is empty or a token outside
    the vocabulary.
    """
    if not prompt:
        raise ValueError("the prompt is empty: accepted is one token at least")
    sequence = Continuing(model)
    found: list[int] = []
    given: Sequence[int] = prompt
    while len(found) < count:
        found.append(int(sequence.read(given)[0, -1].argmax()))
        given = found[-1:]
    return found


def sequence_logits(
    model: TargetModel, tokens: Sequence[int], steps: Steps | None = None
) -> tuple[Tensor, Tensor]:
    """Logits (n, vocabulary) after each of n tokens, and the limit (n, 1) on a float32 model's errors.

    Both float64. `steps`: those of the model with other errors. Raises ValueError where there is no
    token, or one outside the vocabulary.
    """
    if not tokens:
        raise ValueError("there are no tokens: accepted is one at least")
    return with_limit(Continuing(model, steps or Steps(model)).read(tokens))
