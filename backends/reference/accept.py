"""Greedy acceptance: follow the links as long as the target predicts a drafted token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.inputs import Accepted, VerifyInput


def accept(x: VerifyInput, target_predict: Tensor) -> Accepted:
    """The accepted path of each request.

    `target_predict` (T,) int64: the target's argmax token after each row. From the root down, the
    first child (in link order) that holds the predicted token is accepted; at most `x.spec_steps`
    are. The prediction after the last accepted row is the bonus. Raises ValueError where `x` has no
    links.
    """
    note("accept")
    if x.retrieve_index is None or x.retrieve_next_token is None or x.retrieve_next_sibling is None:
        raise ValueError(
            "retrieve_index, retrieve_next_token or retrieve_next_sibling was not built"
        )
    predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
    paths = [
        _walk(*request, predicted, drafted, x.spec_steps)
        for request in zip(
            x.retrieve_index.tolist(),
            x.retrieve_next_token.tolist(),
            x.retrieve_next_sibling.tolist(),
            strict=True,
        )
    ]
    width = x.spec_steps + 1
    tokens = [[drafted[row] for row in path[1:]] + [predicted[path[-1]]] for path in paths]
    device = target_predict.device
    return Accepted(
        accept_index=torch.tensor([p + [-1] * (width - len(p)) for p in paths], device=device),
        accept_len=torch.tensor([len(p) for p in paths], device=device),
        tokens=torch.tensor([t + [-1] * (width - len(t)) for t in tokens], device=device),
    )


def _walk(
    index: Sequence[int],
    next_token: Sequence[int],
    next_sibling: Sequence[int],
    predicted: Sequence[int],
    drafted: Sequence[int],
    most: int,
) -> list[int]:
    """Batch-global rows of one request's accepted path, the root first."""
    row, path = 0, [index[0]]
    while len(path) <= most:
        child = next_token[row]
        for _ in index:  # a cycle among siblings must end too
            if child < 0 or drafted[index[child]] == predicted[path[-1]]:
                break
            child = next_sibling[child]
        else:
            break
        if child < 0:
            break
        row = child
        path.append(index[row])
    return path
