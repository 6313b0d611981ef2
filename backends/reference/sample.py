"""Sampled acceptance for given coins, written plainly: one request, one level, one child at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, GREEDY, TARGET_ONLY, TYPICAL, Sampling

Law = Sequence[float]
"""Probability of each token."""


def sample(x: VerifyInput, given: Sampling) -> Accepted:
    """The accepted path of each request and what it emits, by the rule that is given.

    Raises ValueError where `x` has no links, and where probabilities or coins are none.
    """
    note("sample")
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, retrieve_next_token or retrieve_next_sibling was not built"
        )
    wrong = given.refusal(x.retrieve_index[x.retrieve_index >= 0])
    if wrong is not None:
        raise ValueError(wrong)
    step = _Step(x, given)
    rules = {
        TARGET_ONLY: step.target_only, CHAIN: step.chain, TYPICAL: step.typical, GREEDY: step.greedy,
    }  # fmt: skip
    paths, tokens = [], []
    for b, coin in enumerate(given.final_coins.tolist()):
        path, left = rules[given.rule](b)
        paths.append([step.index[b][row] for row in path])
        tokens.append([*(step.drafted[row] for row in paths[b][1:]), _draw(left, coin)])
    device, width = given.target_probs.device, x.spec_steps + 1
    return Accepted(
        accept_index=torch.tensor([p + [-1] * (width - len(p)) for p in paths], device=device),
        accept_len=torch.tensor([len(p) for p in paths], device=device),
        tokens=torch.tensor([t + [-1] * (width - len(t)) for t in tokens], device=device),
    )


class _Step:
    """One verify step on the host. A rule gives the local rows of the accepted path of a request, and
    the weights by which its last token is drawn."""

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
        self._width = x.spec_steps + 1

    def target_only(self, b: int) -> tuple[list[int], Law]:
        path = [0]
        while True:
            law, coin = self._law(b, path[-1]), self._coins[self.index[b][path[-1]]]
            left, reached = list(law), 0.0
            for child in self._children(b, path):
                token = self._token(b, child)
                reached += law[token]
                low = coin * self.given.threshold_acc < reached
                if law[token] > 0 and (low or law[token] >= self.given.threshold_single):
                    path.append(child)
                    break
                left[token] = 0.0
            else:
                return path, left

    def chain(self, b: int) -> tuple[list[int], Law]:
        assert self.given.draft_probs is not None
        drafted: list[list[float]] = self.given.draft_probs[b].tolist()
        path = [0]
        while True:
            law, coin = self._law(b, path[-1]), self._coins[self.index[b][path[-1]]]
            child = next(self._children(b, path), None)
            if child is None:
                return path, law
            asked, token = drafted[len(path) - 1], self._token(b, child)
            if not (0 < asked[token] <= 1 and coin * asked[token] < law[token]):
                return path, [max(0.0, p - q) for p, q in zip(law, asked, strict=True)]
            path.append(child)

    def typical(self, b: int) -> tuple[list[int], Law]:
        found: list[tuple[float, list[int]]] = [(1.0, [0])]
        level = found
        while level:
            found, level = level, []
            for likelihood, path in found:
                law = self._law(b, path[-1])
                entropy = -sum(share * math.log(share) for share in law if share > 0)
                least = min(self.given.epsilon, self.given.delta * math.exp(-entropy))
                for child in self._children(b, path):
                    share = law[self._token(b, child)]
                    if share > least:
                        level.append((likelihood * share, [*path, child]))
        path = max(found, key=lambda one: one[0])[1]
        return path, self._law(b, path[-1])

    def greedy(self, b: int) -> tuple[list[int], Law]:
        path = [0]
        while True:
            law = self._law(b, path[-1])
            best = law.index(max(law))
            child = next((c for c in self._children(b, path) if self._token(b, c) == best), None)
            if child is None:
                return path, [float(token == best) for token in range(len(law))]
            path.append(child)

    def _law(self, b: int, row: int) -> Law:
        return self._laws[self.index[b][row]]

    def _token(self, b: int, row: int) -> int:
        return self.drafted[self.index[b][row]]

    def _children(self, b: int, path: Sequence[int]) -> Iterator[int]:
        """Local rows under the last one of a path, in link order; none below the depth drafted."""
        child = self._down[b][path[-1]] if len(path) < self._width else -1
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
