"""What the stage `process` is given beside the logits: what a request asks of its next token.

torch is not imported here. Symbols as in `contract.inputs`; V is the size of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Constraints:
    """Penalties, biases, a grammar, a temperature and min-p of each request.

    They follow the path of a row: with c the count of a token in `counts` and among the drafts on
    the path below the root, the row's own token included, the logit l of each token becomes, in this
    order, l - frequency * c - presence where c > 0; then l / repetition where it is above 0 and
    l * repetition where not, where c > 0; then l + bias; then -inf where the grammar, advanced over
    the same drafts, has no way on; then l / temperature; then -inf where it is below the largest
    one by more than -log(min_p).
    """

    counts: Tensor
    """(B, V) how often each token is among what the request has emitted, its root included."""
    frequency: Tensor
    presence: Tensor
    """(B,) float32; 0: none."""
    repetition: Tensor
    """(B,) float32, above 0; 1: none."""
    bias: Tensor
    """(B, V) float32."""
    temperature: Tensor
    """(B,) float32, above 0."""
    min_p: Tensor
    """(B,) float32 in [0, 1); 0: none."""
    grammar: Tensor
    """(B, states, V) the state that follows a state by a token; -1: the token is not allowed. A row
    whose path is not allowed is free."""
    grammar_state: Tensor
    """(B,) the state after the root."""
