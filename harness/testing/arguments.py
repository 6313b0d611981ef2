"""Plain Python arguments as requests; what cannot be used is a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeproof.contract.case import MaskMode, Request
from treeproof.contract.tree import CandidateTree

Parents = Sequence[int] | Sequence[Sequence[int]]
"""One tree, as the parent of each node, or one such list a request. Tensors will do."""

Lengths = int | Sequence[int]
"""One length for every request, or one a request."""


def whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}: a whole number is accepted")
    return value


def page_size_of(value: Any) -> int:
    if not 1 <= whole_number("page_size", value) <= 1024:
        raise ValueError(f"page_size is {value}: accepted are 1 to 1024")
    return int(value)


def mask_mode_of(value: str | MaskMode) -> MaskMode:
    """A mask mode, or its name."""
    if isinstance(value, MaskMode):
        return value
    if value not in MaskMode.__members__:
        raise ValueError(f"mask_mode is {value!r}: accepted are {', '.join(MaskMode.__members__)}")
    return MaskMode[value]


def whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    """A sequence, array or one-dimensional tensor of whole numbers."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list | tuple | range):
        raise ValueError(f"{name} is {plain!r}: a sequence of whole numbers is accepted")
    for i, item in enumerate(plain):
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"{name}[{i}] is {item!r}: whole numbers are accepted")
    return tuple(plain)


def one_a_request(name: str, value: Any, count: int) -> tuple[int, ...]:
    """A number for all requests, or a sequence with one each."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, int) and not isinstance(plain, bool):
        return (plain,) * count
    found = whole_numbers(name, plain)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} entries for {count} trees: one a request")
    return found


def lists_a_request(name: str, value: Any) -> list[tuple[int, ...]]:
    """One list of whole numbers, or one a request, as a list a request."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list | tuple | range) or not plain:
        raise ValueError(f"{name} is {plain!r}: a sequence of whole numbers, or one a request")
    if not _is_list(plain[0]):
        return [whole_numbers(name, plain)]
    return [whole_numbers(f"{name}[{b}]", own) for b, own in enumerate(plain)]


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") or (hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0)


def requests_of(
    parents: Parents,
    prefix: Lengths,
    *,
    prefix_name: str,
    tokens: Any = None,
    row_of_node: Any = None,
    pad_rows: Sequence[int] | None = None,
) -> tuple[Request, ...]:
    """The requests of a batch. `tokens` default to the node's number, `row_of_node` to the node."""
    trees = lists_a_request("parents", parents)
    prefixes = one_a_request(prefix_name, prefix, len(trees))
    names = _matching("tokens", tokens, len(trees))
    rows = _matching("row_of_node", row_of_node, len(trees))
    return tuple(
        _request(b, trees[b], prefixes[b], names[b], rows[b], pad_rows[b] if pad_rows else 0)
        for b in range(len(trees))
    )


def _matching(name: str, value: Any, count: int) -> list[tuple[int, ...] | None]:
    if value is None:
        return [None] * count
    found = lists_a_request(name, value)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} lists for {count} trees: one a request")
    return list(found)


def _request(
    b: int,
    parents: tuple[int, ...],
    prefix: int,
    tokens: tuple[int, ...] | None,
    rows: tuple[int, ...] | None,
    pad_rows: int,
) -> Request:
    nodes = tuple(range(len(parents)))
    try:
        tree = CandidateTree(nodes if tokens is None else tokens, parents)
        return Request(
            tree=tree,
            row_of_node=nodes if rows is None else rows,
            prefix_len=prefix,
            pad_rows=pad_rows,
        )
    except ValueError as error:
        raise ValueError(f"request {b}: {error}") from None
