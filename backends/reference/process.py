"""Row processing, written plainly: each row by the drafts on its own path."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import VerifyInput


def process(x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
    """Logits (T, V) float32 as each request's constraints have them. Raises ValueError where `x` has
    no links."""
    note("process")
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, retrieve_next_token or retrieve_next_sibling was not built"
        )
    made = logits.clone()
    drafted = x.draft_token.tolist()
    tables = (x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling)
    for b, (index, down, right) in enumerate(zip(*(t.tolist() for t in tables), strict=True)):
        waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        for row, path in waiting:  # of at most as many rows as there are: a circle must end too
            made[index[row]] = _row(logits[index[row]], path, given, b)
            child = down[row]
            while child >= 0 and len(waiting) < len(index):
                waiting.append((child, (*path, drafted[index[child]])))
                child = right[child]
    return made


def _row(logits: Tensor, path: Sequence[int], given: Constraints, b: int) -> Tensor:
    counts, state = given.counts[b].clone(), int(given.grammar_state[b])
    for token in path:
        counts[token] += 1
        state = int(given.grammar[b, state, token]) if state >= 0 else -1
    seen = counts > 0
    row = logits - given.frequency[b] * counts - given.presence[b] * seen
    rate = given.repetition[b]
    row = torch.where(seen, torch.where(row > 0, row / rate, row * rate), row) + given.bias[b]
    if state >= 0:
        row = row.masked_fill(given.grammar[b, state] < 0, -math.inf)
    row = row / given.temperature[b]
    return row.masked_fill(row < row.max() + given.min_p[b].log(), -math.inf)
