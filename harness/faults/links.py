"""Faults of the link tables: first child, next sibling, parent, and the row each of them names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.tables import Rewrite, builds, rewritten

_DOWN, _RIGHT, _UP = "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token"
_INDEX = "retrieve_index"
_LANES = 32
"""Nodes that one warp, or one word, has room for."""


def _shifted(name: str, by: int) -> Rewrite:
    """Every link of one table leads `by` rows too far."""

    def rewrite(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
        table = getattr(x, name)
        return {name: torch.where(table >= 0, table + by, table)}

    return rewrite


def _each_last_sibling(link: Any) -> Rewrite:
    """The last child of every parent has a next sibling: `link(row, first child)`."""

    def rewrite(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
        right = getattr(x, _RIGHT).clone()
        for b, down in enumerate(getattr(x, _DOWN).tolist()):
            for first in (row for row in down if row >= 0):
                row = first
                while right[b, row] >= 0:
                    row = int(right[b, row])
                right[b, row] = link(row, first)
        return {_RIGHT: right}

    return rewrite


def _zero_filled(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    right = getattr(x, _RIGHT)
    return {_RIGHT: right.clamp(min=0)}


def _younger_lost(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    return {_RIGHT: torch.full_like(getattr(x, _RIGHT), -1)}


def _middle_lost(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    right = getattr(x, _RIGHT)
    second = right.gather(1, right.clamp(min=0))
    return {_RIGHT: torch.where((right >= 0) & (second >= 0), second, right)}


def _elder_lost(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    down, right = getattr(x, _DOWN).clone(), getattr(x, _RIGHT)
    for _ in range(down.shape[1]):
        later = right.gather(1, down.clamp(min=0))
        down = torch.where((down >= 0) & (later >= 0), later, down)
    return {_DOWN: down}


def _of_the_one_before(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    return {name: getattr(x, name).roll(1, dims=0) for name in (_DOWN, _RIGHT)}


def _of_the_first(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    names = (_DOWN, _RIGHT)
    return {name: getattr(x, name)[:1].expand_as(getattr(x, name)).clone() for name in names}


def _local_index(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    index = getattr(x, _INDEX)
    return {_INDEX: torch.where(index >= 0, index - index[:, :1], index)}


def _index_of_equal_blocks(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    index = getattr(x, _INDEX)
    block = torch.arange(len(index), device=index.device)[:, None] * index.shape[1]
    return {_INDEX: torch.where(index >= 0, index - index[:, :1] + block, index)}


def _padding_below_root(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    """The first padded row of a request is the root's youngest child."""
    down, right = getattr(x, _DOWN).clone(), getattr(x, _RIGHT).clone()
    for b, (real, rows) in enumerate(zip(c.num_nodes.tolist(), c.num_rows.tolist(), strict=True)):
        if rows == real:
            continue
        at = int(down[b, 0])
        while at >= 0 and right[b, at] >= 0:
            at = int(right[b, at])
        if at < 0:
            down[b, 0] = real
        else:
            right[b, at] = real
    return {_DOWN: down, _RIGHT: right}


def _padding_links_root(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    padded = torch.arange(getattr(x, _DOWN).shape[1], device=c.num_nodes.device)
    padded = (padded >= c.num_nodes[:, None]) & (padded < c.num_rows[:, None])
    return {_DOWN: torch.where(padded, 0, getattr(x, _DOWN))}


def _one_warp(x: VerifyInput, c: Candidates) -> Mapping[str, Tensor]:
    """No link leads to a row past the first 32."""
    tables = {name: getattr(x, name) for name in (_DOWN, _RIGHT)}
    return {name: torch.where(t < _LANES, t, -1) for name, t in tables.items()}


_PAIR = case(request((-1, 0)))
_LONE_THEN_PAIR = case(request(), request((-1, 0)))


@dataclass(frozen=True)
class _Wrong:
    family: str
    variant: str
    says: str
    cause: str
    rewrite: Rewrite
    fields: tuple[str, ...]
    smallest: VerifyCase
    sources: tuple[str, ...] = ()


_WRONG = (
    _Wrong(
        "link-off-by-one", "child-down",
        "first children are counted among the drafts, which leave the root out",
        "links-off-by-one", _shifted(_DOWN, -1), (_DOWN,), _PAIR,
    ),
    _Wrong(
        "link-off-by-one", "child-up", "the first child of a row is taken for the one after it",
        "links-off-by-one", _shifted(_DOWN, 1), (_DOWN,), _PAIR,
    ),
    _Wrong(
        "link-off-by-one", "sibling-up", "the next sibling of a row is taken for the one after it",
        "links-off-by-one", _shifted(_RIGHT, 1), (_RIGHT,), case(request(FORK)),
    ),
    _Wrong(
        "link-off-by-one", "parent-down",
        "parents are counted among the drafts, which leave the root out",
        "links-off-by-one", _shifted(_UP, -1), (_UP,), _PAIR,
    ),
    _Wrong(
        "link-off-by-one", "parent-up", "a row is hung below the row after its parent",
        "links-off-by-one", _shifted(_UP, 1), (_UP,), _PAIR,
    ),
    _Wrong(
        "last-sibling-linked", "itself", "the last child of a parent is its own next sibling",
        "last-sibling-linked", _each_last_sibling(lambda row, first: row), (_DOWN, _RIGHT), _PAIR,
    ),
    _Wrong(
        "last-sibling-linked", "first", "the siblings of a parent go in a circle",
        "last-sibling-linked", _each_last_sibling(lambda row, first: first), (_DOWN, _RIGHT),
        _PAIR,
    ),
    _Wrong(
        "last-sibling-linked", "next-row", "the last child of a parent is linked to the next row",
        "last-sibling-linked", _each_last_sibling(lambda row, first: row + 1), (_DOWN, _RIGHT),
        _PAIR,
    ),
    _Wrong(
        "last-sibling-linked", "zero", "no next sibling is written as 0, which names the root",
        "last-sibling-linked", _zero_filled, (_RIGHT,), case(request()),
    ),
    _Wrong(
        "sibling-lost", "younger", "only the first child of a parent is linked",
        "sibling-lost", _younger_lost, (_RIGHT,), case(request(FORK)),
    ),
    _Wrong(
        "sibling-lost", "middle", "a third child takes the second one's place in the chain",
        "sibling-lost", _middle_lost, (_RIGHT,), case(request((-1, 0, 0, 0))),
    ),
    _Wrong(
        "sibling-lost", "elder", "each child hung below a parent replaces the one before",
        "sibling-lost", _elder_lost, (_DOWN, _RIGHT), case(request(FORK)),
    ),
    _Wrong(
        "links-of-neighbour", "before", "a request has the links of the request before it",
        "links-of-neighbour", _of_the_one_before, (_DOWN, _RIGHT), _LONE_THEN_PAIR,
        ("B003", "NVIDIA/TensorRT-LLM#3456"),
    ),
    _Wrong(
        "links-of-neighbour", "first", "all requests have the links of the first one",
        "links-of-neighbour", _of_the_first, (_DOWN, _RIGHT), _LONE_THEN_PAIR,
        ("B003", "NVIDIA/TensorRT-LLM#3456"),
    ),
    _Wrong(
        "index-without-batch-offset", "local",
        "retrieve_index names rows of the request where rows of the batch are expected",
        "links-of-neighbour", _local_index, (_INDEX,), case(request(), request()),
        ("sgl-project/sglang#26866",),
    ),
    _Wrong(
        "index-without-batch-offset", "equal-blocks",
        "retrieve_index takes every request for as many rows as the longest",
        "links-of-neighbour", _index_of_equal_blocks, (_INDEX,), _LONE_THEN_PAIR,
        ("sgl-project/sglang#26866",),
    ),
    _Wrong(
        "padding-linked", "below-root", "the first padded row hangs below the root",
        "padding-accepted", _padding_below_root, (_DOWN, _RIGHT),
        case(request(pad_rows=1)), ("B052",),
    ),
    _Wrong(
        "padding-linked", "to-root", "links of padded rows are left at 0, which names the root",
        "padding-accepted", _padding_links_root, (_DOWN,), case(request(pad_rows=1)), ("B052",),
    ),
    _Wrong(
        "links-of-one-warp", "", "rows past the 32nd are linked to nobody",
        "sibling-lost", _one_warp, (_DOWN, _RIGHT), case(request((-1, *[0] * 32))),
        ("sgl-project/sgl-kernel-xpu#451",),
    ),
)  # fmt: skip


def _fault(wrong: _Wrong) -> Fault:
    def plant(backend: Backend) -> Backend:
        return rewritten(backend, wrong.rewrite)

    return Fault(
        family=wrong.family,
        variant=wrong.variant,
        says=wrong.says,
        sources=wrong.sources,
        stage="build",
        identity="traversal",
        evidence="declared",
        cause=wrong.cause,
        smallest=wrong.smallest,
        plant=plant,
        applies=builds(*wrong.fields),
    )


FAULTS = tuple(map(_fault, _WRONG))
