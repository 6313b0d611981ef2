"""Row processing along links, all rows of a level at once: `topology`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import VerifyInput


def process_down(x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
    """Counts and grammar states are handed down from parents to children.

    Raises ValueError where a link table is missing.
    """
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, next_token and next_sibling are needed, one was not built"
        )
    requests, width = x.retrieve_index.shape
    counts = given.counts[:, None].expand(requests, width, -1).clone()
    states = given.grammar_state[:, None].expand(requests, width).clone()
    made, b = logits.clone(), torch.arange(requests, device=logits.device)
    row = torch.zeros_like(b)
    for _ in range(width):  # of a tree no level is deeper
        at = x.retrieve_index[b, row]
        made[at] = _adjusted(logits[at], counts[b, row], states[b, row], given, b)
        b, row, above = _children(x, b, row)
        if not len(b):
            break
        token = x.draft_token[x.retrieve_index[b, row]]
        counts[b, row] = counts[b, above]
        counts[b, row, token] += 1
        state = states[b, above]
        onward = given.grammar[b, state.clamp(min=0), token]
        states[b, row] = torch.where(state >= 0, onward, -1)
    return made


def _children(x: VerifyInput, b: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Request, row and parent of every child of these rows."""
    assert x.retrieve_next_token is not None
    assert x.retrieve_next_sibling is not None
    found = []
    child = x.retrieve_next_token[b, row]
    for _ in range(x.retrieve_next_token.shape[1]):  # a circle of siblings must end too
        on = child >= 0
        b, row, child = b[on], row[on], child[on]
        if not len(b):
            break
        found.append(torch.stack([b, child, row]))
        child = x.retrieve_next_sibling[b, child]
    every = torch.cat(found, dim=1) if found else b.new_empty(3, 0)
    return every[0], every[1], every[2]


def _adjusted(
    logits: Tensor, counts: Tensor, states: Tensor, given: Constraints, b: Tensor
) -> Tensor:
    """(rows, V) of rows of requests `b`, by the counts (rows, V) and states (rows,) of their paths."""
    seen = counts > 0
    logits = logits - given.frequency[b, None] * counts - given.presence[b, None] * seen
    rate = torch.where(seen, given.repetition[b, None], 1.0)
    logits = torch.where(logits > 0, logits / rate, logits * rate) + given.bias[b]
    barred = (given.grammar[b, states.clamp(min=0)] < 0) & (states >= 0)[:, None]
    logits = logits.masked_fill(barred, float("-inf")) / given.temperature[b, None]
    least = logits.amax(1, keepdim=True) + given.min_p[b, None].log()
    return logits.masked_fill(logits < least, float("-inf"))
