"""A request that is served over many rounds, against plain decoding: its tokens, and its KV cache."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.oracles.law import Walk
from treeproof.oracles.sampled import outcomes
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


def judge_run(
    request: int,
    position: int,
    run: Sequence[int],
    right: Sequence[int],
    walk: Walk,
    coins: Mapping[Hashable, Fraction],
    limit: float,
) -> list[Failure]:
    """A sampled run against what plain decoding emits with the same coins, where logits are off by
    `limit` at most: one that they leave open is no failure.

    Logits that are off by d move a share of the mass, and a sum of shares, by a factor of exp(2 d).
    """
    share = Fraction(math.expm1(2 * limit))
    if tuple(run) in outcomes(walk, coins, lambda coin, edges: share):
        return []
    at = next((i for i, pair in enumerate(zip(run, right, strict=False)) if len({*pair}) > 1), 0)
    return [
        Failure(
            identity="output", kind="wrong-continuation", evidence="measured", stage="attend",
            request=request, column=position + at, expected=str(list(right)), actual=str(list(run)),
            message=f"from token {position} on request {request} is {list(run)}; plain decoding with the "
            f"same coins emits {list(right)} there (logits are off by {limit:.2g} at most)",
        )
    ]  # fmt: skip


def judge_logits(
    request: int, first: int, found: Tensor, exact: Tensor, limit: Tensor
) -> list[Failure]:
    """Logits (n, vocabulary) after each of n tokens from position `first` on, float64 on the CPU; exact ones
    (n, vocabulary), off by `limit` (n, 1) at most. The first position that is farther off is told."""
    ratio = (found - exact).abs() / limit
    wrong = (~(ratio <= 1)).any(1).nonzero().flatten().tolist()
    if not wrong:
        return []
    at = wrong[0]
    token = int(torch.nan_to_num(ratio[at], nan=float("inf")).argmax())
    off = float((found[at, token] - exact[at, token]).abs())
    return [
        Failure(
            identity="output", kind="wrong-logits", evidence="measured", stage="attend",
            request=request, column=first + at,
            expected=f"{float(exact[at, token]):.6g}", actual=f"{float(found[at, token]):.6g}",
            message=f"logits after token {first + at} of request {request} are off by {off:.3g} at token "
            f"{token}: {float(ratio[at, token]):.3g} times what rounding explains",
        )
    ]  # fmt: skip


def judge_contents(
    request: int,
    first: int,
    held: Sequence[tuple[str, Tensor, Tensor, Tensor]],
    *,
    handed_out: bool,
) -> list[Failure]:
    """Columns from `first` on, as the prefix cache has handed them out, or as rounds have left them.

    Each of `held` is (name, found, exact, limit): (layers, n, heads, lanes) but for the limit
    (layers, n, 1, 1). The first column that is farther off is told.
    """
    kind, stage = ("stale-prefix", "pool") if handed_out else ("wrong-contents", "commit")
    when = "as the prefix cache hands them out" if handed_out else "when it is finished"
    for name, found, exact, limit in held:
        off = (found.double().cpu() - exact).abs()
        wrong = ~(off <= limit)  # what is no number is wrong as well
        if not bool(wrong.any()):
            continue
        layer, column = (int(i) for i in wrong.flatten(2).any(2).nonzero()[0])
        return [
            Failure(
                identity="kv", kind=kind, evidence="measured", stage=stage,
                request=request, column=first + column,
                message=f"{name} of column {first + column} of request {request} in layer {layer} are "
                f"not those of plain decoding {when}: off by {_largest(off[layer, column]):.3g}, "
                f"at most {float(limit[layer, column].max()):.2g} is rounding",
            )
        ]  # fmt: skip
    return []


def _largest(off: Tensor) -> float:
    return float(torch.nan_to_num(off, nan=float("inf")).max())


def judge_successors(
    request: int, first: int, found: Sequence[int], right: Sequence[int]
) -> list[Failure]:
    """What the drafter reads beside the columns of a chunk: the token after each."""
    if list(found) == list(right):
        return []
    at = next((i for i, pair in enumerate(zip(found, right, strict=False)) if len({*pair}) > 1), 0)
    return [
        Failure(
            identity="candidate", kind="wrong-draft-input", evidence="measured", stage="schedule",
            request=request, column=first + at, expected=str(list(right)), actual=str(list(found)),
            message=f"beside columns {first} to {first + len(right) - 1} of the prompt of request "
            f"{request} the drafter reads tokens {list(found)}, expected {list(right)}",
        )
    ]  # fmt: skip


def judge_runnable(
    chosen: Sequence[int], running: Sequence[int], in_flight: Sequence[int]
) -> list[Failure]:
    """Whom the next round may begin with: nobody whose last round is not back, and nobody else's."""
    wrong = [request for request in chosen if request in in_flight or request not in running]
    if not wrong:
        return []
    why = "while its last round is not back" if wrong[0] in in_flight else "which is not running"
    return [
        Failure(
            identity="candidate", kind="runs-too-early", evidence="measured", stage="schedule",
            request=wrong[0], expected=str([r for r in running if r not in in_flight]),
            actual=str(list(chosen)),
            message=f"request {wrong[0]} is to be run {why}: its next root is not known",
        )
    ]  # fmt: skip


def judge_cached(request: int, found: int, known: int) -> list[Failure]:
    """Columns of a stopped request that the cache hands out, and those that it may know of."""
    if found <= known:
        return []
    return [
        Failure(
            identity="kv", kind="caches-unserved", evidence="measured", stage="pool",
            request=request, column=known, expected=str(known), actual=str(found),
            message=f"the prefix cache knows {found} columns of request {request} after it was "
            f"stopped, expected {known}: tokens past the stop were served to nobody",
        )
    ]  # fmt: skip
