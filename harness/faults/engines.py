"""Faults inside a whole engine, of which only logits are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Identity
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.plant import edited, wrapped
from treeproof.faults.smallest import FORK, case, request

Forward = Callable[[VerifyInput, Sequence[Tensor]], Tensor]
"""`forward` as it was."""

_TINY = "tiny-engine"
_MASKED = 'scores.masked_fill(~visible, float("-inf"))'
_CAUSAL = "torch.ones_like(visible).tril(visible.shape[1] - visible.shape[0])"


def _inside(*edits: tuple[str, str]) -> tuple[Plant, Applies]:
    return lambda backend: edited(backend, *edits), lambda backend: backend.name == _TINY


def _around(wrong: Callable[..., Tensor], *reads: str) -> tuple[Plant, Applies]:
    """A wrapper, for every engine that looks at these fields."""

    def applies(backend: Backend) -> bool:
        return "forward" in backend.stages and set(reads) <= backend.consumes

    return lambda backend: wrapped(backend, "forward", wrong), applies


def _position_is_row(right: Forward, x: VerifyInput, prefixes: Sequence[Tensor]) -> Tensor:
    starts = x.qo_indptr[:-1].repeat_interleave(x.qo_indptr.diff())
    row = torch.arange(len(x.positions), device=x.positions.device) - starts
    return right(replace(x, positions=x.positions[starts] + row), prefixes)


def _prefix_of_neighbour(right: Forward, x: VerifyInput, prefixes: Sequence[Tensor]) -> Tensor:
    return right(x, [prefixes[-1], *prefixes[:-1]])


def _last_prefix_token_dropped(
    right: Forward, x: VerifyInput, prefixes: Sequence[Tensor]
) -> Tensor:
    return right(x, [tokens[:-1] for tokens in prefixes])


def _requests_mixed(right: Forward, x: VerifyInput, prefixes: Sequence[Tensor]) -> Tensor:
    """The root of every request but the first is mixed with the root before it."""
    logits = right(x, prefixes)
    roots = x.qo_indptr[:-1]
    mixed = logits.clone()
    mixed[roots[1:]] = (logits[roots[1:]] + logits[roots[:-1]]) / 2
    return mixed


def _fault(
    name: str,
    says: str,
    cause: str,
    planted: tuple[Plant, Applies],
    smallest: VerifyCase,
    *sources: str,
    identity: Identity = "visibility",
) -> Fault:
    plant, applies = planted
    family, _, variant = name.partition(".")
    return Fault(
        family=family,
        variant=variant,
        says=says,
        sources=sources,
        stage="forward",
        identity=identity,
        evidence="measured",
        cause=cause,
        smallest=smallest,
        plant=plant,
        applies=applies,
    )


FAULTS = (
    _fault(
        "engine-causal.all-layers",
        "every layer has a plain causal mask, so a row reads the siblings before it",
        "causal-mask",
        _inside((_MASKED, f'scores.masked_fill(~{_CAUSAL}, float("-inf"))')),
        case(request(FORK)),
        "B018",
    ),
    _fault(
        "engine-causal.later-layers",
        "only the first layer has the tree mask, those after it a causal one",
        "causal-mask",
        _inside(
            (_MASKED, f'scores.masked_fill(~({_CAUSAL} if layer else visible), float("-inf"))')
        ),
        case(request(FORK)),
        "B018",
    ),
    _fault(
        "engine-causal.one-head",
        "one head of each layer has a causal mask",
        "one-head-only",
        _inside(
            (
                _MASKED,
                f"scores.masked_fill(~torch.stack([{_CAUSAL}, *[visible] * (len(scores) - 1)]), "
                'float("-inf"))',
            )
        ),
        case(request(FORK)),
        "B018",
    ),
    _fault(
        "engine-parent-hidden",
        "a row reads the root and itself, and none of the drafts between them",
        "parent-hidden",
        _inside(("        row = parents[row]\n", "        row = min(parents[row], 0)\n")),
        case(request((-1, 0, 1))),
        "B002",
    ),
    _fault(
        "engine-position-is-row",
        "rows are rotated by their place in the launch",
        "position-is-row",
        _around(_position_is_row, "positions", "qo_indptr"),
        case(request(FORK)),
        "B010",
        identity="output",
    ),
    _fault(
        "engine-prefix-of-neighbour",
        "a request runs on the prefix of the one before it",
        "neighbour-request",
        _around(_prefix_of_neighbour),
        case(request(), request(prefix=1)),
        "B003",
    ),
    _fault(
        "engine-prefix-last-key-missing",
        "the last prefix token is not read",
        "prefix-last-key-missing",
        _around(_last_prefix_token_dropped),
        case(request(prefix=1)),
        "sgl-project/sglang#36038",
    ),
    _fault(
        "engine-prefix-cache-short-key",
        "cached prefixes are looked up without their last token",
        "prefix-key-short",
        _inside(
            ("key = tuple(tokens.tolist())\n", "key = tuple(tokens.tolist()[:-1])\n"),
            ("count, shape = len(key), ", "count, shape = len(tokens), "),
        ),
        case(request(prefix=1)),
        "sgl-project/sglang#10846",
    ),
    _fault(
        "engine-requests-mixed",
        "the first rows of neighbouring requests run into each other",
        "unknown",
        _around(_requests_mixed, "qo_indptr"),
        case(request(), request(prefix=1)),
        "B090",
        identity="output",
    ),
)
