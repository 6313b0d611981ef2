"""Where accepted runs end, all requests at once but for their strings: `topology`'s."""

from __future__ import annotations

import torch

from treeproof.contract.inputs import Accepted
from treeproof.contract.stopping import (
    LENGTH,
    RUNNING,
    STOP_STRING,
    STOP_TOKEN,
    Finished,
    StopRules,
)


def finish_run(accepted: Accepted, rules: StopRules) -> Finished:
    """The first place at which each rule ends a run; the earliest of them ends it."""
    tokens, lengths = accepted.tokens, accepted.accept_len
    width, device = tokens.shape[1], tokens.device
    step = torch.arange(width, device=device)
    ends = (tokens[:, :, None] == rules.stop_tokens[:, None]).any(2) & (step < lengths[:, None])
    by_token = torch.where(ends.any(1), ends.long().argmax(1), width)
    by_length = torch.where(rules.budget <= lengths, rules.budget - 1, width)
    by_string = torch.tensor(
        [
            _string_ends(run[:length], rules, b, width)
            for b, (run, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True))
        ],
        device=device,
    )
    # Of equal places the first of these counts.
    first = torch.stack([by_string, by_token, by_length], dim=1)
    place, rule = first.amin(1), (first == first.amin(1, keepdim=True)).long().argmax(1)
    reasons = torch.tensor([STOP_STRING, STOP_TOKEN, LENGTH], device=device)
    served = torch.minimum(place + 1, lengths)
    return Finished(
        tokens=torch.where(step < served[:, None], tokens, -1),
        served=served,
        reason=torch.where(place < width, reasons[rule], RUNNING),
    )


def _string_ends(run: list[int], rules: StopRules, b: int, never: int) -> int:
    """The token in which a stop string of the request is first completed; `never` where none is."""
    bounds = [len(rules.served_text[b])]
    text = rules.served_text[b]
    for token in run:
        text += rules.pieces[token]
        bounds.append(len(text))
    found = never
    for stop in rules.stop_strings[b]:
        start = max(0, bounds[0] - len(stop) + 1)
        at = text.find(stop, start)
        if at >= 0:
            last = at + len(stop)
            found = min(found, next(i for i, bound in enumerate(bounds[1:]) if bound >= last))
    return found
