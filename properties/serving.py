"""A request that is served over many rounds, against plain decoding: its tokens, and its KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.properties.greedy import judge_choice


def judge_token(
    request: int, position: int, token: int, logits: Tensor, limit: float
) -> list[Failure]:
    """A token that was emitted against the exact logits (vocabulary,) before it, off by `limit` at
    most: one of several that rounding leaves open is no failure."""
    best, below = int(logits.argmax()), ""
    if 0 <= token < len(logits):
        if judge_choice(logits.tolist(), [limit] * len(logits), token) != "fail":
            return []
        below = f", whose logit is {float(logits[best] - logits[token]):.3g} below the best"
    return [
        Failure(
            identity="output", kind="wrong-continuation", evidence="measured", stage="attend",
            request=request, column=position, expected=str(best), actual=str(token),
            message=f"token {position} of request {request} is {token}{below}; plain decoding emits "
            f"{best} there (logits are off by {limit:.2g} at most)",
        )
    ]  # fmt: skip


def judge_contents(
    request: int,
    held: Sequence[tuple[str, Tensor, Tensor, Tensor]],
    *,
    handed_out: bool,
) -> list[Failure]:
    """Its first columns, as the prefix cache has handed them out, or as rounds have left them.

    Each of `held` is (name, found, exact, limit): (layers, n, heads, lanes) but for the limit
    (layers, n, 1, 1). The first column that is farther off is told.
    """
    kind, stage = ("stale-prefix", "pool") if handed_out else ("wrong-contents", "commit")
    when = "as the prefix cache hands them out" if handed_out else "when it is finished"
    for name, found, exact, limit in held:
        off = (found.double() - exact).abs()
        wrong = ~(off <= limit)  # what is no number is wrong as well
        if not bool(wrong.any()):
            continue
        layer, column = (int(i) for i in wrong.flatten(2).any(2).nonzero()[0])
        return [
            Failure(
                identity="kv", kind=kind, evidence="measured", stage=stage,
                request=request, column=column,
                message=f"{name} of column {column} of request {request} in layer {layer} are "
                f"not those of plain decoding {when}: off by {_largest(off[layer, column]):.3g}, "
                f"at most {float(limit[layer, column].max()):.2g} is rounding",
            )
        ]  # fmt: skip
    return []


def _largest(off: Tensor) -> float:
    return float(torch.nan_to_num(off, nan=float("inf")).max())
