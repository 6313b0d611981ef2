"""Sampled acceptance for given coins, written plainly: one request, one level, one child at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import TARGET_ONLY, Sampling

Law = Sequence[float]
"""Probability of each token."""


def sample(x: VerifyInput, given: Sampling) -> Accepted:
    """The accepted path of each request and what it emits, by the rule that is given.

    Raises ValueError where `x` has no links, where probabilities or coins are none, and where it
    does not know the rule.
    """
    note("sample")
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, retrieve_next_token or retrieve_next_sibling was not built"
        )
    wrong = given.refusal(x.retrieve_index[x.retrieve_index >= 0])
    if wrong is not None:
        raise ValueError(wrong)
    if given.rule != TARGET_ONLY:
        raise ValueError(f"rule is {given.rule}: known is {TARGET_ONLY}")
    step = _Step(x, given)
    paths, tokens, width = [], [], x.spec_steps + 1
    for b, coin in enumerate(given.final_coins.tolist()):
        path, left = step.target_only(b, width)
        paths.append([step.index[b][row] for row in path])
        tokens.append([*(step.drafted[row] for row in paths[b][1:]), _draw(left, coin)])
    device = given.target_probs.device
    return Accepted(
        accept_index=torch.tensor([p + [-1] * (width - len(p)) for p in paths], device=device),
        accept_len=torch.tensor([len(p) for p in paths], device=device),
        tokens=torch.tensor([t + [-1] * (width - len(t)) for t in tokens], device=device),
    )


class _Step:
    """One verify step on the host."""

    def __init__(self, x: VerifyInput, given: Sampling) -> None:
        assert x.retrieve_index is not None
        assert x.retrieve_next_token is not None
        assert x.retrieve_next_sibling is not None
        self.given = given
        self.index: list[list[int]] = x.retrieve_index.tolist()
        self._down: list[list[int]] = x.retrieve_next_token.tolist()
        self._right: list[list[int]] = x.retrieve_next_sibling.tolist()
        self.drafted: list[int] = x.draft_token.tolist()
        self._laws: list[list[float]] = given.target_probs.tolist()
        self._coins: list[float] = given.coins.tolist()

    def target_only(self, b: int, width: int) -> tuple[list[int], Law]:
        """Local rows of the accepted path, and the weights by which its last token is drawn."""
        path = [0]
        while True:
            at = self.index[b][path[-1]]
            law, coin = self._laws[at], self._coins[at]
            left, reached = list(law), 0.0
            for child in self._children(b, path[-1]) if len(path) < width else ():
                token = self.drafted[self.index[b][child]]
                reached += law[token]
                low = coin * self.given.threshold_acc < reached
                if law[token] > 0 and (low or law[token] >= self.given.threshold_single):
                    path.append(child)
                    break
                left[token] = 0.0
            else:
                return path, left

    def _children(self, b: int, row: int) -> Iterator[int]:
        """Local rows of the children, in link order."""
        child = self._down[b][row]
        for _ in self.index[b]:  # a cycle among siblings must end too
            if child < 0:
                return
            yield child
            child = self._right[b][child]


def _draw(weights: Law, coin: float) -> int:
    """The first token up to which more than the coin's share of the mass lies."""
    aim, reached, drawn = coin * sum(weights), 0.0, len(weights) - 1
    for token, weight in enumerate(weights):
        if weight > 0:
            drawn, reached = token, reached + weight
            if reached > aim:
                break
    return drawn
