"""Faults of visibility in what a build tells its rows to see: who is hidden, and who is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from treeproof.contract.case import VerifyCase
from treeproof.faults.fault import Fault
from treeproof.faults.seeing import Parents, Sees, path, seeing, tells_rows
from treeproof.faults.smallest import CHAIN, FORK, case, request

Row = Callable[[Sequence[int], int], list[int]]
"""The rows that a row is told to see, from the parent rows of its request."""


def _each(row: Row) -> Sees:
    return lambda parents: [[row(up, i) for i in range(len(up))] for up in parents]


def _without(hidden: Callable[[list[int]], Sequence[int]]) -> Sees:
    """Rows of its path that `hidden` names are hidden from a row."""

    def row(up: Sequence[int], i: int) -> list[int]:
        own = path(up, i)
        return [other for other in own if other not in hidden(own)]

    return _each(row)


def _with(shown: Callable[[Sequence[int], int, int], bool]) -> Sees:
    """Rows beside its path for which `shown(parents, row, other)` holds are visible to a row."""

    def row(up: Sequence[int], i: int) -> list[int]:
        own = path(up, i)
        return sorted({*own, *(other for other in range(len(up)) if shown(up, i, other))})

    return _each(row)


def _siblings(up: Sequence[int], i: int, other: int) -> bool:
    return i != other and up[i] == up[other]


def _transposed(up: Sequence[int], i: int) -> list[int]:
    return [other for other in range(len(up)) if i in path(up, other)]


def _shifted(by: int, up: Sequence[int], i: int) -> list[int]:
    return [row + by for row in path(up, i) if 0 <= row + by < len(up)]


def _of_the_request_before(parents: Parents) -> list[list[list[int]]]:
    """Where the request before has as many rows; a lone request sees its own."""
    return [
        [path(parents[b - 1] if len(parents[b - 1]) == len(up) else up, i) for i in range(len(up))]
        for b, up in enumerate(parents)
    ]


_SEEN: tuple[tuple[str, str, str, tuple[str, ...], str, Sees, VerifyCase], ...] = (
    (
        "ancestors-unwritten", "all", "the ancestors of a row are never written, only itself is",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "parent-hidden",
        _without(lambda own: own[:-1]), case(request((-1, 0))),
    ),
    (
        "ancestors-unwritten", "later-requests",
        "ancestors are written for the first request alone, where all requests write them",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "parent-hidden",
        lambda parents: [
            [path(up, i) if b == 0 else [i] for i in range(len(up))]
            for b, up in enumerate(parents)
        ],
        case(request(), request((-1, 0))),
    ),
    (
        "ancestors-unwritten", "every-row", "the bit of one row's parent is set in every row",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "unknown",
        _with(lambda up, i, other: other in up), case(request((-1, 0, 1))),
    ),
    (
        "ancestor-hidden", "self", "a draft does not see itself",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "self-hidden",
        _without(lambda own: own[1:][-1:]), case(request((-1, 0))),
    ),
    (
        "ancestor-hidden", "root", "drafts do not see the root, which passes for prefix",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "root-hidden",
        _without(lambda own: own[:-1][:1]), case(request((-1, 0))),
    ),
    (
        "ancestor-hidden", "root-from-depth-two", "the climb to the root ends one step early",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "root-hidden",
        _without(lambda own: own[:-2][:1]), case(request(CHAIN)),
    ),
    (
        "ancestor-hidden", "parent", "the climb begins at the grandparent",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "parent-hidden",
        _without(lambda own: own[1:-1][-1:]), case(request(CHAIN)),
    ),
    (
        "ancestor-hidden", "grandparent", "only the parent and the root are climbed to",
        ("B002", "sgl-project/sgl-kernel-npu#146"), "ancestor-hidden",
        _without(lambda own: own[1:-2]), case(request((-1, 0, 1, 2))),
    ),
    (
        "sibling-visible", "elder", "a row sees the siblings before it",
        ("lightseekorg/tokenspeed#469",), "sibling-visible",
        _with(lambda up, i, other: _siblings(up, i, other) and other < i), case(request(FORK)),
    ),
    (
        "sibling-visible", "younger", "a row sees the siblings after it",
        ("lightseekorg/tokenspeed#469",), "sibling-visible",
        _with(lambda up, i, other: _siblings(up, i, other) and other > i), case(request(FORK)),
    ),
    (
        "sibling-visible", "of-an-ancestor", "a row sees the siblings of its parent",
        ("lightseekorg/tokenspeed#469",), "sibling-visible",
        _with(lambda up, i, other: i > 0 and _siblings(up, up[i], other)),
        case(request((-1, 0, 0, 1))),
    ),
    (
        "tree-mask-left-out", "causal", "rows are told to see all rows up to their own",
        ("B018", "sgl-project/sglang#36038"), "causal-mask",
        _each(lambda up, i: list(range(i + 1))), case(request(FORK)),
    ),
    (
        "tree-mask-left-out", "none", "rows are told to see all rows of their request",
        ("B018", "sgl-project/sglang#36038"), "no-mask",
        _each(lambda up, i: list(range(len(up)))), case(request((-1, 0))),
    ),
    (
        "mask-transposed", "", "rows and columns are exchanged: a row sees its descendants",
        ("B024", "flashinfer-ai/flashinfer#3176"), "mask-transposed",
        _each(_transposed), case(request((-1, 0))),
    ),
    (
        "mask-column-shift", "up", "columns of the tree are one too high",
        ("B030", "sgl-project/sglang#9279"), "mask-column-shift",
        _each(partial(_shifted, 1)), case(request((-1, 0))),
    ),
    (
        "mask-column-shift", "down", "columns of the tree are one too low",
        ("B030", "sgl-project/sglang#9279"), "mask-column-shift",
        _each(partial(_shifted, -1)), case(request((-1, 0))),
    ),
    (
        "mask-of-neighbour", "", "a request's rows see what those of the request before it see",
        ("B003", "NVIDIA/TensorRT-LLM#3456"), "mask-of-neighbour",
        _of_the_request_before, case(request(FORK), request(CHAIN)),
    ),
)  # fmt: skip

FAULTS = tuple(
    Fault(
        family=family, variant=variant, says=says, sources=sources, stage="build",
        identity="visibility", evidence="declared", cause=cause, smallest=smallest,
        plant=partial(seeing, sees=sees), applies=tells_rows,
    )
    for family, variant, says, sources, cause, sees, smallest in _SEEN
)  # fmt: skip
