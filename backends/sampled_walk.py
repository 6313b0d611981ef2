"""Sampled acceptance down the links, all requests of a batch a level at a time: `topology`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import GREEDY, TARGET_ONLY, Sampling


def sample_down(x: VerifyInput, given: Sampling) -> Accepted:
    """Every request stands on one row; those whose coin takes none of its children stay there.

    Raises ValueError where a link table is missing, and where the rule is another than it knows.
    """
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, next_token and next_sibling are needed, one was not built"
        )
    if given.rule == GREEDY:
        # The likeliest token has all there is; argmax takes the first of equals.
        best = given.target_probs.argmax(1, keepdim=True)
        certain = torch.zeros_like(given.target_probs).scatter_(1, best, 1.0)
        zero = torch.zeros_like(given.coins), torch.zeros_like(given.final_coins)
        given = Sampling(TARGET_ONLY, certain, *zero)
    if given.rule != TARGET_ONLY:
        raise ValueError(f"rule is {given.rule}: known are {TARGET_ONLY} and {GREEDY}")
    index, request = x.retrieve_index, torch.arange(len(x.retrieve_index), device=x.seq_lens.device)
    row, walking = torch.zeros_like(request), torch.ones_like(request, dtype=torch.bool)
    accept_index = index.new_full((len(index), x.spec_steps + 1), -1)
    accept_index[:, 0] = index[:, 0]
    tokens, lengths = torch.full_like(accept_index, -1), torch.ones_like(request)
    left = given.target_probs[index[:, 0]]
    for step in range(1, x.spec_steps + 1):
        child, left = _below(x, given, request, row, walking, left)
        walking = child >= 0
        if not bool(walking.any()):
            break
        row = torch.where(walking, child, row)
        at = index[request, row]
        accept_index[:, step] = torch.where(walking, at, -1)
        tokens[:, step - 1] = torch.where(walking, x.draft_token[at], -1)
        lengths += walking
        left = torch.where(walking[:, None], given.target_probs[at], left)
    tokens[request, lengths - 1] = _draw(left, given.final_coins)
    return Accepted(accept_index=accept_index, accept_len=lengths, tokens=tokens)


def _below(
    x: VerifyInput, given: Sampling, request: Tensor, row: Tensor, walking: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """(B,) the child that each walking request's coin takes, -1 where none; and (B, V) what is left
    of the law without those refused."""
    assert x.retrieve_index is not None
    assert x.retrieve_next_token is not None
    assert x.retrieve_next_sibling is not None
    at = x.retrieve_index[request, row]
    law, coin = given.target_probs[at], given.coins[at]
    most = max(given.threshold_acc, 1e-9)
    reached, taken = torch.zeros_like(coin), torch.full_like(row, -1)
    child = torch.where(walking, x.retrieve_next_token[request, row], -1)
    left = left.clone()
    for _ in range(x.retrieve_index.shape[1]):  # a circle of siblings must end too
        asked = child >= 0
        if not bool(asked.any()):
            break
        token = x.draft_token[x.retrieve_index[request, child.clamp(min=0)]]
        share = torch.where(asked, law.gather(1, token[:, None])[:, 0], 0.0)
        reached = reached + share
        won = (share > 0) & ((coin < reached / most) | (share >= given.threshold_single))
        taken = torch.where(won, child, taken)
        lost = (asked & ~won).nonzero()[:, 0]
        left[lost, token[lost]] = 0.0
        onward = x.retrieve_next_sibling[request, child.clamp(min=0)]
        child = torch.where(asked & ~won, onward, -1)
    return taken, left


def _draw(weights: Tensor, coin: Tensor) -> Tensor:
    """(B,) the first token whose cumulated weight is above the coin's share of the whole."""
    reached = weights.cumsum(1)
    above = (reached > (coin * reached[:, -1])[:, None]) & (weights > 0)
    last = weights.shape[1] - 1 - (weights > 0).flip(1).long().argmax(1)
    return torch.where(above.any(1), above.long().argmax(1), last)
