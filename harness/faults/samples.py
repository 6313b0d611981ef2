"""Faults of sampled acceptance: whose coin is asked, what it is compared with, what the last token is
drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import GREEDY, Sampling
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import CHAIN, FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Sample = Callable[[VerifyInput, Sampling], Accepted]
"""`sample` as it was. The wrong one is `wrong(right, x, given)`."""

_PAIR = case(request((-1, 0)))
_LEAST = 2.0**-60
"""Too little to be drawn by any coin but 0."""


def ends(x: VerifyInput, done: Accepted) -> tuple[Tensor, Tensor]:
    """(B,) batch-global row that each walk ends on, and whether it has children, all refused."""
    assert x.retrieve_index is not None
    assert x.retrieve_next_token is not None
    last = done.accept_index.gather(1, done.accept_len[:, None] - 1)[:, 0]
    local = last - x.retrieve_index[:, 0]
    return last, x.retrieve_next_token.gather(1, local[:, None])[:, 0] >= 0


def _parents(x: VerifyInput) -> Tensor:
    """(T,) batch-global row of each row's parent; its own where it has none."""
    assert x.retrieve_index is not None
    above = torch.arange(len(x.draft_token), device=x.draft_token.device)
    for index, down, right in _links(x):
        for row, child in enumerate(down):
            while child >= 0:
                above[index[child]] = index[row]
                child = right[child]
    return above


def _links(x: VerifyInput) -> list[tuple[list[int], list[int], list[int]]]:
    tables = (x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling)
    lists = [table.tolist() for table in tables if table is not None]
    return list(zip(*lists, strict=True))


def _where_drawn(wrong: Callable[..., Accepted]) -> Callable[..., Accepted]:
    """By rule `greedy` no coin is asked and nothing is drawn: it stays as it was."""

    def around(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
        return right(x, given) if given.rule == GREEDY else wrong(right, x, given)

    return around


def _one_coin(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """The coin that refused the children picks the replacement as well."""
    last, refused = ends(x, right(x, given))
    coins = torch.where(refused, given.coins[last], given.final_coins)
    return right(x, replace(given, final_coins=coins))


def _coin_of_root(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """One coin a request, for all of its levels."""
    assert x.retrieve_index is not None
    coins = given.coins.clone()
    for line in x.retrieve_index:
        rows = line[line >= 0]
        coins[rows] = given.coins[rows[0]]
    return right(x, replace(given, coins=coins))


def _coin_of_row(shift: int) -> Callable[..., Accepted]:
    def wrong(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
        return right(x, replace(given, coins=given.coins.roll(shift)))

    return wrong


def _below(coins: Tensor) -> Tensor:
    """The next number below, so that `<` does what `<=` would."""
    return torch.nextafter(coins, torch.zeros_like(coins))


def _inclusive_accept(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    return right(x, replace(given, coins=_below(given.coins)))


def _inclusive_draw(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    return right(x, replace(given, final_coins=_below(given.final_coins)))


def _zero_accepted(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """A coin of 0 is not above a sum of 0: a draft without any probability is accepted."""
    return right(x, replace(given, target_probs=given.target_probs.clamp(min=_LEAST)))


def _greedy(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    best = given.target_probs.argmax(1)
    certain = torch.zeros_like(given.target_probs).scatter_(1, best[:, None], 1.0)
    return right(x, replace(given, target_probs=certain))


def _redrawn(
    weights: Callable[[VerifyInput, Sampling, Accepted], Tensor],
) -> Callable[..., Accepted]:
    """The last token of each request is drawn from other weights, (B, V)."""

    def wrong(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
        done = right(x, given)
        token = drawn(weights(x, given, done), given.final_coins)
        last = done.accept_len[:, None] - 1
        return replace(done, tokens=done.tokens.scatter(1, last, token[:, None]))

    return wrong


def drawn(weights: Tensor, coins: Tensor, mass: float | None = None) -> Tensor:
    """(B,) the first token up to which more than a coin's share of the mass lies."""
    reached = weights.double().cumsum(1)
    whole = reached[:, -1] if mass is None else torch.full_like(reached[:, -1], mass)
    above = reached > (coins.double() * whole)[:, None]
    return torch.where(above.any(1), above.long().argmax(1), weights.shape[1] - 1)


def _with_refused(x: VerifyInput, given: Sampling, done: Accepted) -> Tensor:
    return given.target_probs[ends(x, done)[0]]


def _of_parent_when_full(x: VerifyInput, given: Sampling, done: Accepted) -> Tensor:
    last, refused = ends(x, done)
    return torch.where(
        refused[:, None], _residual(x, given, done), given.target_probs[_parents(x)[last]]
    )


def _of_root(x: VerifyInput, given: Sampling, done: Accepted) -> Tensor:
    assert x.retrieve_index is not None
    refused = ends(x, done)[1]
    return torch.where(
        refused[:, None], _residual(x, given, done), given.target_probs[x.retrieve_index[:, 0]]
    )


def _residual(x: VerifyInput, given: Sampling, done: Accepted) -> Tensor:
    """(B, V) the law after the last accepted row without the children of that row."""
    last, _ = ends(x, done)
    left = given.target_probs[last].clone()
    for b, (index, down, right) in enumerate(_links(x)):
        child = down[int(last[b]) - index[0]]
        while child >= 0:
            left[b, x.draft_token[index[child]]] = 0.0
            child = right[child]
    return left


def _first_refused_only(x: VerifyInput, given: Sampling, done: Accepted) -> Tensor:
    """Only the child that was asked first is taken out."""
    last, refused = ends(x, done)
    left = given.target_probs[last].clone()
    for b, (index, down, _) in enumerate(_links(x)):
        if refused[b]:
            left[b, x.draft_token[index[down[int(last[b]) - index[0]]]]] = 0.0
    return left


def _not_renormalised(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    done = right(x, given)
    token = drawn(_residual(x, given, done), given.final_coins, mass=1.0)
    last = done.accept_len[:, None] - 1
    return replace(done, tokens=done.tokens.scatter(1, last, token[:, None]))


def _thresholds_swapped(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    single, acc = given.threshold_single, given.threshold_acc
    return right(x, replace(given, threshold_single=acc, threshold_acc=single))


def _thresholds_ignored(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    return right(x, replace(given, threshold_single=1.0, threshold_acc=1.0))


def _zero_threshold_is_none(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """As `or` does, where None stands for a threshold that was not given."""
    single, acc = given.threshold_single or 1.0, given.threshold_acc or 1.0
    return right(x, replace(given, threshold_single=single, threshold_acc=acc))


def _law_of_child(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """A draft is weighed by the law after itself, the last token drawn by the right one."""
    laws = given.target_probs.clone()
    for index, down, sibling in _links(x):
        for row, child in enumerate(down):
            if child >= 0 and sibling[child] < 0:
                laws[index[row]] = given.target_probs[index[child]]
    return right(x, replace(given, target_probs=laws))


def _unsummed(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """Each child is asked by itself whether the coin is below its own probability."""
    laws, coins, drafted = given.target_probs.tolist(), given.coins.tolist(), x.draft_token.tolist()
    certain = given.target_probs.clone()
    steered = given.coins.clone()
    for index, down, sibling in _links(x):
        for row, child in enumerate(down):
            at, chosen = index[row], None
            while child >= 0:
                token = drafted[index[child]]
                share = laws[at][token]
                low = coins[at] * given.threshold_acc < share
                if chosen is None and share > 0 and (low or share >= given.threshold_single):
                    chosen = token
                child = sibling[child]
            if chosen is not None:
                certain[at] = 0.0
                certain[at, chosen] = 1.0
                steered[at] = 0.0
            elif down[row] >= 0:
                steered[at] = 1.0 - 2.0**-24
    return right(x, replace(given, target_probs=certain, coins=steered))


_WRONG: tuple[Wrong[Callable[..., Accepted]], ...] = (
    Wrong(
        "one-coin-for-two", "", "the coin that refuses the drafts draws the replacement as well",
        "one-coin-for-two", _one_coin, _PAIR, ("B056",),
    ),
    Wrong(
        "one-coin-for-two", "levels", "one coin decides on all levels of a request",
        "coin-of-another", _coin_of_root, case(request(CHAIN)), ("B056",),
    ),
    Wrong(
        "coin-of-another-row", "next", "a row's children are decided by the coin of the next row",
        "coin-of-another", _coin_of_row(-1), _PAIR,
    ),
    Wrong(
        "coin-of-another-row", "previous", "a row's children are decided by the coin of the row before",
        "coin-of-another", _coin_of_row(1), _PAIR,
    ),
    Wrong(
        "edge-inclusive", "accept", "a coin on the edge still accepts",
        "edge-inclusive", _inclusive_accept, _PAIR, ("B057",),
    ),
    Wrong(
        "edge-inclusive", "draw", "a coin on the edge still draws the token before it",
        "edge-inclusive", _inclusive_draw, case(request()), ("B057",),
    ),
    Wrong(
        "edge-inclusive", "zero", "a coin of 0 accepts a draft of no probability",
        "edge-inclusive", _zero_accepted, _PAIR, ("B057",),
    ),
    Wrong(
        "silently-greedy", "", "requests that sample are sent to the largest probability",
        "silently-greedy", _greedy, case(request()), ("B059",),
    ),
    Wrong(
        "refused-not-removed", "", "drafts that were refused can still be drawn",
        "refused-not-removed", _redrawn(_with_refused), _PAIR,
    ),
    Wrong(
        "refused-not-removed", "but-the-first", "of the drafts refused the first alone is taken out",
        "refused-not-removed", _redrawn(_first_refused_only), case(request(FORK)),
    ),
    Wrong(
        "residual-not-renormalised", "", "the last coin is compared with a residual that adds up to "
        "less than 1", "residual-not-renormalised", _not_renormalised, _PAIR,
    ),
    Wrong(
        "sampled-bonus", "parent", "after a whole path the last token is drawn by the law of the row "
        "before", "sampled-by-another-row", _redrawn(_of_parent_when_full), _PAIR, ("B053",),
    ),
    Wrong(
        "sampled-bonus", "root", "after a whole path the last token is drawn by the law at the root",
        "sampled-by-another-row", _redrawn(_of_root), _PAIR, ("B053",),
    ),
    Wrong(
        "thresholds", "swapped", "the two thresholds change places",
        "thresholds", _thresholds_swapped, case(request((-1, 0)), seed=1),
    ),
    Wrong(
        "thresholds", "ignored", "the thresholds are taken for 1", "thresholds",
        _thresholds_ignored, _PAIR,
    ),
    Wrong(
        "law-of-the-draft", "", "an only draft is weighed by the law after itself",
        "law-of-the-draft", _law_of_child, _PAIR, ("B053",),
    ),
    Wrong(
        "siblings-not-summed", "", "the coin is compared with each draft's own probability",
        "unknown", _unsummed, case(request(FORK), seed=1),
    ),
)  # fmt: skip


_MORE: tuple[Wrong[Callable[..., Accepted]], ...] = (
    Wrong(
        "thresholds", "zero", "a threshold of 0 is taken for one that was not given", "thresholds",
        _zero_threshold_is_none, _PAIR,
    ),
)  # fmt: skip


def _faults(wrong: tuple[Wrong[Callable[..., Accepted]], ...]) -> tuple[Fault, ...]:
    return faults_of(
        wrong,
        stage="sample",
        identity="traversal",
        evidence="measured",
        plant=lambda one: lambda backend: wrapped(backend, "sample", _where_drawn(one)),
        applies=lambda backend: "sample" in backend.stages,
    )


FAULTS, MORE = _faults(_WRONG), _faults(_MORE)
