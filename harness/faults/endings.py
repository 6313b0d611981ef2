"""Faults of where a request ends inside an accepted run, and of what is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from treeproof.contract.inputs import Accepted
from treeproof.contract.stopping import LENGTH, RUNNING, STOP_STRING, Finished, StopRules
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

Finish = Callable[[Accepted, StopRules], Finished]
"""`finish` as it was. The wrong one is `wrong(right, accepted, rules)`."""

_ROOT = case(request())


def _last_only(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """Whether a stop token ends the run is asked of its last token alone."""
    last = accepted.tokens.gather(1, accepted.accept_len[:, None] - 1)
    stop = torch.where(rules.stop_tokens == last, rules.stop_tokens, -1)
    done = right(accepted, replace(rules, stop_tokens=stop))
    early = (accepted.tokens == last).long().argmax(1) + 1 < accepted.accept_len
    return (
        right(accepted, replace(rules, stop_tokens=torch.full_like(stop, -1)))
        if early.any()
        else done
    )


def _length_first(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """The length is asked first; where it cuts the run nothing else is."""
    done = right(accepted, rules)
    cut = rules.budget <= accepted.accept_len
    step = torch.arange(accepted.tokens.shape[1], device=cut.device)
    tokens = torch.where(step < rules.budget[:, None], accepted.tokens, -1)
    return Finished(
        tokens=torch.where(cut[:, None], tokens, done.tokens),
        served=torch.where(cut, rules.budget, done.served),
        reason=torch.where(cut, LENGTH, done.reason),
    )


def _stop_dropped(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """What ends a run is not served."""
    done = right(accepted, rules)
    drop = (done.reason != RUNNING) & (done.reason != LENGTH)
    served = done.served - drop.long()
    step = torch.arange(done.tokens.shape[1], device=served.device)
    return replace(done, served=served, tokens=torch.where(step < served[:, None], done.tokens, -1))


def _strings_by_token(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """A stop string is looked for in each token by itself."""
    done = right(accepted, rules)
    texts = tuple("\0" for _ in rules.served_text)
    apart = replace(rules, served_text=texts, pieces=tuple(f"\0{p}" for p in rules.pieces))
    alone = right(accepted, apart)
    return alone if bool((alone.reason != done.reason).any()) else done


def _whole_block_charged(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    return replace(right(accepted, rules), served=accepted.accept_len.clone())


def _whole_block_served(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """The budget ends the request, and cuts nothing off."""
    done = right(accepted, rules)
    over = done.reason == LENGTH
    return Finished(
        tokens=torch.where(over[:, None], accepted.tokens, done.tokens),
        served=torch.where(over, accepted.accept_len, done.served),
        reason=done.reason,
    )


def _budget_off(by: int) -> Callable[..., Finished]:
    def wrong(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
        return right(accepted, replace(rules, budget=(rules.budget + by).clamp(min=1)))

    return wrong


def _token_before_string(right: Finish, accepted: Accepted, rules: StopRules) -> Finished:
    """A stop token is asked before a stop string: what is served is the same, the reason is not."""
    done = right(accepted, rules)
    none = tuple(() for _ in rules.stop_strings)
    without = right(accepted, replace(rules, stop_strings=none))
    same = (done.reason == STOP_STRING) & (without.served == done.served)
    return replace(done, reason=torch.where(same, without.reason, done.reason))


_WRONG: tuple[Wrong[Callable[..., Finished]], ...] = (
    Wrong(
        "stop-overlooked", "last-only", "whether a run ends is asked of its last token alone",
        "unknown", _last_only, _ROOT, ("B065",),
    ),
    Wrong(
        "stop-overlooked", "length-first", "the length is asked before the stop token that comes "
        "earlier", "unknown", _length_first, _ROOT, ("B065",),
    ),
    Wrong(
        "stop-overlooked", "string-over-tokens", "a stop string is not seen where it spans tokens",
        "unknown", _strings_by_token, _ROOT, ("B065",),
    ),
    Wrong(
        "stop-token-dropped", "", "the token that ends a run is not served",
        "unknown", _stop_dropped, _ROOT, ("B065",),
    ),
    Wrong(
        "wrong-end-named", "", "a stop token is named where a stop string ends the run",
        "unknown", _token_before_string, _ROOT,
    ),
    Wrong(
        "charged-not-served", "whole-run", "the whole accepted run is charged, however much is served",
        "unknown", _whole_block_charged, _ROOT, ("B066",),
    ),
    Wrong(
        "charged-not-served", "past-the-budget", "the run that crosses the budget is served whole",
        "unknown", _whole_block_served, _ROOT, ("B066",),
    ),
    Wrong(
        "budget-off-by-one", "up", "one token more than the budget is served",
        "unknown", _budget_off(1), _ROOT, ("B066",),
    ),
    Wrong(
        "budget-off-by-one", "down", "one token less than the budget is served",
        "unknown", _budget_off(-1), _ROOT, ("B066",),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="finish",
    identity="traversal",
    evidence="measured",
    plant=lambda wrong: lambda backend: wrapped(backend, "finish", wrong),
    applies=lambda backend: "finish" in backend.stages,
)
