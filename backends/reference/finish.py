"""Where an accepted run ends, written plainly: token by token."""

from __future__ import annotations

import torch

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Accepted
from treeproof.contract.stopping import (
    LENGTH,
    RUNNING,
    STOP_STRING,
    STOP_TOKEN,
    Finished,
    StopRules,
)


def finish(accepted: Accepted, rules: StopRules) -> Finished:
    """How much of each run is served, and why the request ended, if it did."""
    note("finish")
    lengths, budgets = accepted.accept_len.tolist(), rules.budget.tolist()
    tokens, reasons = [], []
    for b, run in enumerate(accepted.tokens.tolist()):
        served, why = _served(run[: lengths[b]], budgets[b], rules, b)
        tokens.append(served + [-1] * (len(run) - len(served)))
        reasons.append(why)
    made = torch.tensor(tokens, device=accepted.tokens.device)
    reason = torch.tensor(reasons, device=accepted.tokens.device)
    return Finished(tokens=made, served=(made >= 0).sum(1), reason=reason)


def _served(run: list[int], budget: int, rules: StopRules, b: int) -> tuple[list[int], int]:
    text, ends = rules.served_text[b], set(rules.stop_tokens[b].tolist())
    for count, token in enumerate(run, start=1):
        before, text = len(text), text + rules.pieces[token]
        # One that lies wholly in what was served before has ended nothing then, and does not now.
        if any(text.find(s, max(0, before - len(s) + 1)) >= 0 for s in rules.stop_strings[b]):
            return run[:count], STOP_STRING
        if token in ends:
            return run[:count], STOP_TOKEN
        if count == budget:
            return run[:count], LENGTH
    return run, RUNNING
