"""Faults of the accept walk, around any backend's own: where it looks, when it stops, what it emits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import CHAIN, FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Walk = Callable[[VerifyInput, Tensor], Accepted]
"""`accept` as it was. The wrong one is `wrong(right, x, target_predict)`."""

_PAIR = case(request((-1, 0)))
"""Its only draft is accepted in one round and missed by one bit in the other."""


def _last(tokens: Callable[[Accepted, VerifyInput, Tensor], Tensor]) -> Callable[..., Accepted]:
    """The last token of each request is another one: `tokens` (B,); -1 leaves it as it is."""

    def wrong(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
        done = right(x, predicted)
        last = done.accept_len[:, None] - 1
        bonus = tokens(done, x, predicted)[:, None]
        bonus = torch.where(bonus >= 0, bonus, done.tokens.gather(1, last))
        return replace(done, tokens=done.tokens.scatter(1, last, bonus))

    return wrong


def _of_parent(done: Accepted, x: VerifyInput, predicted: Tensor) -> Tensor:
    above = done.accept_index.gather(1, (done.accept_len[:, None] - 2).clamp(min=0))[:, 0]
    return torch.where(done.accept_len > 1, predicted[above], -1)


def _of_parent_when_full(done: Accepted, x: VerifyInput, predicted: Tensor) -> Tensor:
    return torch.where(done.accept_len > x.spec_steps, _of_parent(done, x, predicted), -1)


def _of_dense_row(done: Accepted, x: VerifyInput, predicted: Tensor) -> Tensor:
    return predicted[done.accept_index[:, 0] + done.accept_len - 1]


def _of_last_row(done: Accepted, x: VerifyInput, predicted: Tensor) -> Tensor:
    return predicted[_ends(done, x) - 1]


def _ends(done: Accepted, x: VerifyInput) -> Tensor:
    """(B,) row after the last one of each request."""
    first = done.accept_index[:, 0]
    return torch.cat([first[1:], first.new_tensor([len(x.draft_token)])])


def _length_off(by: int) -> Callable[..., Accepted]:
    def wrong(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
        done = right(x, predicted)
        return replace(done, accept_len=done.accept_len + by)

    return wrong


def _cut(most: Callable[[VerifyInput], int]) -> Callable[..., Accepted]:
    """At most so many rows are accepted, the root included."""

    def wrong(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
        done = right(x, predicted)
        past = torch.arange(done.tokens.shape[1], device=done.tokens.device) >= most(x)
        return Accepted(
            accept_index=done.accept_index.masked_fill(past, -1),
            accept_len=done.accept_len.clamp(max=most(x)),
            tokens=done.tokens.masked_fill(past, -1),
        )

    return wrong


def _root_unchecked(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """The prediction at the root is taken to be the draft of row 1."""
    done = right(x, predicted)
    first = done.accept_index[:, 0]
    first = first[_ends(done, x) > first + 1]
    assumed = predicted.clone()
    assumed[first] = x.draft_token[first + 1]
    return right(x, assumed)


def _narrow(narrowed: Callable[[Tensor], Tensor]) -> Callable[..., Accepted]:
    def wrong(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
        done = right(replace(x, draft_token=narrowed(x.draft_token)), narrowed(predicted))
        tokens = predicted[done.accept_index.clamp(min=0)]
        return replace(done, tokens=torch.where(done.accept_index >= 0, tokens, -1))

    return wrong


def _drafts_shifted(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """Drafts are stored without the root, and read as if it were among them."""
    return right(replace(x, draft_token=x.draft_token.roll(1)), predicted)


def _first_32_rows(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    first = right(x, predicted).accept_index[:, 0].tolist()
    drafts = x.draft_token.clone()
    for begin, end in zip(first, [*first[1:], len(drafts)], strict=True):
        drafts[begin + 32 : end] = -1
    return right(replace(x, draft_token=drafts), predicted)


def _as_chain(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """Row i + 1 is taken for the one child of row i."""
    done = right(x, predicted)
    index, lengths = torch.full_like(done.accept_index, -1), done.accept_len.clone()
    for b, end in enumerate(_ends(done, x).tolist()):
        row, taken = int(done.accept_index[b, 0]), 0
        index[b, 0] = row
        while taken < x.spec_steps and row + 1 < end and predicted[row] == x.draft_token[row + 1]:
            row, taken = row + 1, taken + 1
            index[b, taken] = row
        lengths[b] = taken + 1
    tokens = torch.where(index >= 0, predicted[index.clamp(min=0)], -1)
    return Accepted(accept_index=index, accept_len=lengths, tokens=tokens)


def _padding_taken(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """A padded row that holds the token predicted at the root is accepted as its child."""
    done = right(x, predicted)
    index, lengths = done.accept_index.clone(), done.accept_len.clone()
    for b, end in enumerate(_ends(done, x).tolist()):
        root = int(index[b, 0])
        for row in range(root + 1, end):
            padded = int(x.out_cache_loc[row]) in (-1, x.kv.pad_slot)
            if lengths[b] == 1 and padded and x.draft_token[row] == predicted[root]:
                index[b, 1], lengths[b] = row, 2
    tokens = torch.where(index >= 0, predicted[index.clamp(min=0)], -1)
    return Accepted(accept_index=index, accept_len=lengths, tokens=tokens)


def _padding_counted(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """Padded rows stay in the accept length, as a batch padded for another rank leaves them."""
    done = right(x, predicted)
    lengths = done.accept_len.clone()
    for b, end in enumerate(_ends(done, x).tolist()):
        rows = x.out_cache_loc[int(done.accept_index[b, 0]) : end]
        lengths[b] += int(((rows == -1) | (rows == x.kv.pad_slot)).sum())
    return replace(done, accept_len=lengths)


def _predictions_of_first(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """Predictions are looked up by row of the request, without the request's first row."""
    done = right(x, predicted)
    seen = predicted.clone()
    for first, end in zip(done.accept_index[:, 0].tolist(), _ends(done, x).tolist(), strict=True):
        seen[first:end] = predicted[: end - first]
    return right(x, seen)


def _zero_padded(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    done = right(x, predicted)
    return replace(done, accept_index=done.accept_index.clamp(min=0))


def _emits_dense_rows(right: Walk, x: VerifyInput, predicted: Tensor) -> Accepted:
    """Accepted drafts are read off the first rows of the request, the bonus is right."""
    done = right(x, predicted)
    step = torch.arange(done.tokens.shape[1], device=done.tokens.device)
    rows = (done.accept_index[:, :1] + 1 + step).clamp(max=len(x.draft_token) - 1)
    drafted = step < done.accept_len[:, None] - 1
    return replace(done, tokens=torch.where(drafted, x.draft_token[rows], done.tokens))


_WRONG: tuple[Wrong[Callable[..., Accepted]], ...] = (
    Wrong(
        "bonus-from-parent", "full",
        "when the whole path is accepted, the bonus is the prediction of the last node's parent",
        "bonus-from-parent", _last(_of_parent_when_full), _PAIR, ("B053",),
    ),
    Wrong(
        "bonus-from-parent", "always",
        "the bonus is the prediction above the last accepted node: its own token once more",
        "bonus-from-parent", _last(_of_parent), _PAIR, ("B053", "B055"),
    ),
    Wrong(
        "bonus-from-row", "dense", "the bonus is read as if the accepted rows were the first ones",
        "bonus-from-row", _last(_of_dense_row), case(request(FORK)),
        ("B068", "sgl-project/sglang#15360"),
    ),
    Wrong(
        "bonus-from-row", "last", "the bonus is the prediction of the request's last row",
        "bonus-from-row", _last(_of_last_row), _PAIR, ("B068",),
    ),
    Wrong(
        "bonus-from-row", "of-first-request",
        "predictions are looked up without the first row of the request",
        "bonus-from-row", _predictions_of_first, case(request(), request()),
        ("sgl-project/sglang#26866",),
    ),
    Wrong(
        "accept-len-off-by-one", "down", "the accept length leaves the root out",
        "accept-len-off-by-one", _length_off(-1), case(request()), ("B055",),
    ),
    Wrong(
        "accept-len-off-by-one", "up", "the accept length counts the bonus as well",
        "accept-len-off-by-one", _length_off(1), case(request()), ("B055",),
    ),
    Wrong(
        "first-draft-unchecked", "", "the draft of row 1 is accepted without a look at the root",
        "first-draft-unchecked", _root_unchecked, _PAIR, ("B054",),
    ),
    Wrong(
        "walk-stops-early", "depth-cap", "a node of the greatest depth is never accepted",
        "walk-stops-early", _cut(lambda x: x.spec_steps), _PAIR, ("sgl-project/sglang#26866",),
    ),
    Wrong(
        "walk-stops-early", "one-level", "no more than one draft is accepted",
        "walk-stops-early", _cut(lambda x: 2), case(request(CHAIN)), ("sgl-project/sglang#26866",),
    ),
    Wrong(
        "walk-in-a-narrow-type", "int16", "tokens are compared by their lower 16 bits",
        "unknown", _narrow(lambda tokens: tokens.to(torch.int16).long()),
        _PAIR,
    ),
    Wrong(
        "walk-in-a-narrow-type", "bfloat16", "tokens are compared as floats of 8 bits",
        "unknown", _narrow(lambda tokens: tokens.bfloat16().long()),
        case(request((-1, 0), tokens=(0, 1024)), seed=12),
    ),
    Wrong(
        "walk-drafts-shifted", "", "a row is compared by the draft of the row before it",
        "unknown", _drafts_shifted, _PAIR, ("B054",),
    ),
    Wrong(
        "walk-of-one-warp", "", "drafts past the 32nd row are never compared",
        "walk-stops-early", _first_32_rows, case(request(tuple(range(-1, 32)))),
        ("sgl-project/sgl-kernel-xpu#451",),
    ),
    Wrong(
        "walk-as-chain", "", "the walk of a chain is taken for that of a tree",
        "walk-first-child-only", _as_chain, case(request(FORK)), ("B068",),
    ),
    Wrong(
        "padding-accepted", "", "a padded row is accepted as a child of the root",
        "padding-accepted", _padding_taken, case(request(pad_rows=1), seed=2),
        ("B086",),
    ),
    Wrong(
        "padding-in-accept-len", "", "the accept length of a padded request counts its padding",
        "padding-accepted", _padding_counted, case(request(pad_rows=1)), ("B086",),
    ),
    Wrong(
        "accept-index-zero-padded", "", "accept_index ends in 0, which is a row, and not in -1",
        "unwritten-output", _zero_padded, case(request()), ("B067",),
    ),
    Wrong(
        "emits-dense-rows", "", "the tokens emitted are those of the first rows, not of the path",
        "tokens-shifted", _emits_dense_rows, case(request(FORK)),
        ("B068", "sgl-project/sglang#15360"), "candidate",
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="accept",
    identity="traversal",
    evidence="measured",
    plant=lambda walk: lambda backend: wrapped(backend, "accept", walk),
    applies=lambda backend: "accept" in backend.stages,
)
