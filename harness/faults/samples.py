"""Faults of sampled acceptance: whose coin is asked, and out of what the last token is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import Sampling
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

Sample = Callable[[VerifyInput, Sampling], Accepted]
"""`sample` as it was. The wrong one is `wrong(right, x, given)`."""

_PAIR = case(request((-1, 0)))


def _ends(x: VerifyInput, done: Accepted) -> tuple[Tensor, Tensor]:
    """(B,) batch-global row that each walk ends on, and whether it has children, all refused."""
    assert x.retrieve_index is not None
    assert x.retrieve_next_token is not None
    last = done.accept_index.gather(1, done.accept_len[:, None] - 1)[:, 0]
    local = last - x.retrieve_index[:, 0]
    return last, x.retrieve_next_token.gather(1, local[:, None])[:, 0] >= 0


def _one_coin(right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
    """The coin that refused the children picks the replacement as well."""
    last, refused = _ends(x, right(x, given))
    drawn = torch.where(refused, given.coins[last], given.final_coins)
    return right(x, replace(given, final_coins=drawn))


_WRONG = (
    Wrong(
        "one-coin-for-two", "", "the coin that refuses the drafts draws the replacement as well",
        "unknown", _one_coin, _PAIR, ("B056",),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="sample",
    identity="traversal",
    evidence="measured",
    plant=lambda wrong: lambda backend: wrapped(backend, "sample", wrong),
    applies=lambda backend: "sample" in backend.stages,
)
