"""Faults of the drafter's run over an accepted path: whose hidden states, and which keys are renewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.drafting import Extended
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.faults.fault import Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Extend = Callable[[VerifyInput, Accepted, Tensor], Extended]
Does = Callable[[Extended, VerifyInput, Accepted, Tensor], Extended]
"""What was made, out of what: what is made of it instead."""


def _plant(does: Does) -> Plant:
    def around(right: Extend, x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
        return does(right(x, accepted, hidden), x, accepted, hidden)

    return lambda backend: wrapped(backend, "extend", around)


def _step(accepted: Accepted) -> Tensor:
    return torch.arange(accepted.accept_index.shape[1], device=accepted.accept_len.device)


def _of_rows(
    rows: Callable[[VerifyInput, Accepted], Tensor],
) -> Does:
    """Hidden states of these rows of the launch, (B, S+1)."""

    def does(done: Extended, x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
        return replace(done, hidden=hidden[rows(x, accepted).clamp(0, len(hidden) - 1)])

    return does


def _of_own_token(x: VerifyInput, accepted: Accepted) -> Tensor:
    """The row that holds the token itself; the bonus, which has none, gets the last one."""
    last = (accepted.accept_len - 1)[:, None]
    return accepted.accept_index.gather(1, (_step(accepted) + 1).minimum(last))


def _kept(kept: Callable[[Tensor, Tensor], Tensor]) -> Does:
    """Entries whose key is not written; of their number and of how many there are, (B, 1)."""

    def does(done: Extended, x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
        assert done.out_cache_loc is not None
        left = kept(_step(accepted), accepted.accept_len[:, None])
        return replace(done, out_cache_loc=done.out_cache_loc.masked_fill(left, -1))

    return does


def _from_new_boundary(
    done: Extended, x: VerifyInput, accepted: Accepted, hidden: Tensor
) -> Extended:
    assert done.positions is not None
    return replace(done, positions=done.positions + accepted.accept_len[:, None])


def _own_token(done: Extended, x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
    return replace(done, tokens=x.draft_token[accepted.accept_index.clamp(min=0)])


_PAIRED: tuple[Wrong[Does], ...] = (
    Wrong(
        "hidden-of-another-row", "first-rows",
        "the drafter gets the hidden states of a request's first rows, and not of accepted ones",
        "hidden-of-another-row",
        _of_rows(lambda x, accepted: x.qo_indptr[:-1, None] + _step(accepted)),
        case(request(FORK)), ("B072", "sgl-project/sglang#13352"),
    ),
    Wrong(
        "hidden-of-another-row", "strides",
        "rows are counted by steps + 1 where requests are as many rows apart as they have",
        "hidden-of-another-row",
        _of_rows(
            lambda x, accepted: accepted.accept_index - x.qo_indptr[:-1, None]
            + (torch.arange(len(accepted.accept_len)) * (x.spec_steps + 1))[:, None]
        ),
        case(request(), request((-1, 0))), ("B072", "sgl-project/sglang#13352"),
    ),
    Wrong(
        "hidden-of-another-row", "own-token",
        "a token comes with the hidden state after it, which the drafter is to predict",
        "hidden-of-another-row", _of_rows(_of_own_token), case(request((-1, 0))),
    ),
    Wrong(
        "next-token-of-row", "",
        "a hidden state comes with the token of its own row, and not with the one after it",
        "next-token-of-row", _own_token, case(request()),
    ),
)  # fmt: skip

_WRITTEN: tuple[Wrong[Does], ...] = (
    Wrong(
        "drafted-keys-kept", "all-but-last",
        "the drafter runs on the bonus alone, and keeps the keys that it guessed while drafting",
        "drafted-keys-kept", _kept(lambda j, count: j < count - 1),
        case(request((-1, 0))), ("B089", "vllm-project/vllm#14649"),
    ),
    Wrong(
        "drafted-keys-kept", "drafts",
        "only the root's key is written anew, and those of accepted drafts stay as drafted",
        "drafted-keys-kept", _kept(lambda j, count: j > 0),
        case(request((-1, 0))), ("B089", "vllm-project/vllm#14649"),
    ),
)  # fmt: skip

_PLACED: tuple[Wrong[Does], ...] = (
    Wrong(
        "extend-from-new-boundary", "",
        "the accepted path stands behind the boundary that it has moved",
        "extend-from-new-boundary", _from_new_boundary, case(request()),
    ),
)  # fmt: skip

FAULTS = (
    *faults_of(
        _PAIRED, stage="extend", identity="candidate", evidence="measured", plant=_plant,
        applies=lambda backend: "extend" in backend.stages,
    ),
    *faults_of(
        _WRITTEN, stage="extend", identity="kv", evidence="declared", plant=_plant,
        applies=lambda backend: "extend" in backend.stages,
    ),
    *faults_of(
        _PLACED, stage="extend", identity="position", evidence="declared", plant=_plant,
        applies=lambda backend: "extend" in backend.stages,
    ),
)  # fmt: skip
