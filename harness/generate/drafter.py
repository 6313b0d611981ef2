"""A drafter that fills a pool as EAGLE does: step by step, the k best candidates of a level go on.

Its probabilities are what a softmax in float32 gives where it hurts: exactly 1, exactly 0, equal, or so
small that a product of them is 0. (SGLang's `select_top_k_tokens`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from treeproof.contract.counter import permutation
from treeproof.contract.inputs import DraftPool
from treeproof.generate.data import hash_tensor

if TYPE_CHECKING:
    from torch import Tensor

Pattern: TypeAlias = "Callable[[Tensor, int], Tensor]"
"""Probabilities by rank, best first; of the rank and the level."""

Law = Literal["certain", "saturated", "underflowing", "tied"]
LAWS: tuple[Law, ...] = get_args(Law)
"""How a step's probabilities are drawn: the first child has them all; nearly so, where 1 minus what is left
rounds to 1; products underflow to 0; few different ones."""

_PATTERN, _TOKENS, _KEPT = 401, 402, 403


def grown(steps: Sequence[Tensor], tokens: Sequence[Tensor]) -> DraftPool:
    """The pool of a drafter with these probabilities and tokens.

    `steps[0]` (B, k) are those of the root's children, best first; `steps[i]` (B, k, k) of what each
    beam slot of level i grows. `tokens` have the same shapes. Of equal candidates the earlier one goes
    on, so that what a beam slot holds is no accident.
    """
    import torch

    batch, topk = steps[0].shape
    beam = torch.arange(topk, device=steps[0].device).expand(batch, -1)
    scores = [steps[0]]
    parents = [torch.full_like(beam[:, :1], -1), beam]
    reached = steps[0]
    for level, step in enumerate(steps[1:]):
        expanded = (reached[..., None] * step).flatten(1)
        ranked = torch.sort(expanded, dim=1, descending=True, stable=True)
        reached, best = ranked.values[:, :topk], ranked.indices[:, :topk]
        parents.append(topk + topk * topk * level + best)
        scores.append(expanded)
    return DraftPool(
        scores=torch.cat(scores, dim=1),
        tokens=torch.cat([ids.flatten(1) for ids in tokens], dim=1),
        parents=torch.cat(parents, dim=1),
        topk=topk,
        spec_steps=len(steps),
    )


def drafted_pool(seed: int, law: Law, batch: int, topk: int, steps: int) -> DraftPool:
    """A drawn pool of `batch` requests; tokens are ids of a vocabulary of 4*k."""
    shapes = [(batch, topk), *[(batch, topk, topk)] * (steps - 1)]
    drawn = [_step(seed, law, level, shape) for level, shape in enumerate(shapes)]
    return grown([p for p, _ in drawn], [ids for _, ids in drawn])


def reduced_vocabulary(seed: int, pool: DraftPool) -> Tensor:
    """(4*k,) the target's id of each of the drafter's: others, in no order, each once."""
    import torch

    size = 4 * pool.topk
    kept = torch.arange(size) * 3 + 5
    return kept[torch.tensor(permutation(size, seed, _KEPT))].to(pool.tokens.device)


def _step(seed: int, law: Law, level: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Probabilities of the k best tokens, best first, and which tokens these are."""
    import torch

    topk = shape[-1]
    rank = torch.arange(topk)
    patterns = torch.stack([pattern(rank, level) for pattern in _PATTERNS[law]])
    line = torch.arange(torch.Size(shape[:-1]).numel())
    drawn = hash_tensor(seed, _PATTERN, level, line) % len(patterns)
    word = torch.arange(4 * topk)
    ids = torch.sort(hash_tensor(seed, _TOKENS, level, line[:, None], word), stable=True).indices
    return patterns[drawn].view(shape), ids[:, :topk].reshape(shape)


def _halves(first: float, by: int) -> Pattern:
    """The best has `first`, and each further child a half of the one before, `by` halvings later."""
    return lambda rank, level: (rank == 0) * first + (rank > 0) * 0.5 ** (by + rank).float()


# All in whole powers of two, or nearly: products are the same on every machine.
_PATTERNS: dict[Law, tuple[Pattern, ...]] = {
    "certain": (
        lambda rank, level: (rank == 0).float() if level else 1.0 / (0 * rank + len(rank)),
    ),
    "saturated": (_halves(1.0, 30), _halves(1.0 - 2.0**-24, 25), _halves(0.75, 2)),
    "underflowing": (_halves(2.0**-80, 80), _halves(2.0**-20, 20), _halves(0.5, 1)),
    "tied": (lambda rank, level: 0.25 + 0.0 * rank, lambda rank, level: 0.5 ** (1.0 + rank // 2)),
}
