"""Cases just outside one limit that a backend declares, and inside all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import KVLayout, Request, VerifyCase, pages_needed
from treeproof.contract.tree import CandidateTree

Limit = Literal["max_topk", "max_rows", "page_sizes"]
"""Limits whose other side is cheap to reach."""

_PAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_MOST_ROWS = 128
"""Beyond that a case is not small any more."""
_LONGEST = 128


@dataclass(frozen=True)
class Beyond:
    """`says` is what of the case is outside. `lifted` are the capabilities without that limit."""

    limit: Limit
    says: str
    case: VerifyCase
    lifted: Capabilities


def beyond(case: VerifyCase, able: Capabilities, device: str) -> Iterator[Beyond]:
    """One request in the shape and layout of `case` for each limit; none where there is no limit, or no
    case that is outside it alone."""
    for limit, says, made in _LIMITS:
        if getattr(able, limit) is None:
            continue
        try:
            number, other = made(case, able)
        except ValueError:  # too many slots for the lanes, or rows for the bits of a mask
            continue
        lifted = replace(able, **{limit: None})
        if able.refusal(other, device) and lifted.refusal(other, device) is None:
            yield Beyond(limit, says.format(number), other, lifted)


def _branching(case: VerifyCase, able: Capabilities) -> tuple[int, VerifyCase]:
    topk = (able.max_topk or 0) + 1
    return topk, _with_tree(case, (-1, *[0] * topk))


def _wide(case: VerifyCase, able: Capabilities) -> tuple[int, VerifyCase]:
    """A chain, which whoever takes so many rows takes."""
    rows = (able.max_rows or 0) + 1
    return rows, _with_tree(case, tuple(range(-1, rows - 1)))


def _paged(case: VerifyCase, able: Capabilities) -> tuple[int, VerifyCase]:
    others = [page for page in _PAGES if page not in (able.page_sizes or ())]
    if not others:
        raise ValueError("no page size is outside")
    return others[0], _alone(case, others[0], _near(case.requests[0]))


def _with_tree(case: VerifyCase, parents: tuple[int, ...]) -> VerifyCase:
    if len(parents) > _MOST_ROWS:
        raise ValueError(f"{len(parents)} rows are too many")
    rows = tuple(range(len(parents)))
    tree = CandidateTree(tokens=rows, parents=parents)
    own = replace(_near(case.requests[0]), tree=tree, row_of_node=rows, pad_rows=0)
    return _alone(case, case.layout.page_size, own)


def _near(request: Request) -> Request:
    return replace(request, prefix_len=min(request.prefix_len, _LONGEST), prefix_tokens=())


def _alone(case: VerifyCase, page: int, request: Request) -> VerifyCase:
    """This request in a cache of pages of this size, one of them to spare."""
    pad = case.layout.pad_slot
    pages = 1 + pages_needed((request,), KVLayout(page_size=page, num_slots=page, pad_slot=pad))
    layout = replace(
        case.layout,
        page_size=page,
        num_slots=pages * page,
        page_table_pad=min(case.layout.page_table_pad, 0),
        shared_prefix=0,
    )
    return replace(case, requests=(request,), layout=layout)


_LIMITS: tuple[tuple[Limit, str, Callable[..., tuple[int, VerifyCase]]], ...] = (
    ("max_topk", "topk {}", _branching),
    ("max_rows", "{} rows in a request", _wide),
    ("page_sizes", "page size {}", _paged),
)
