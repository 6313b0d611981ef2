"""Batches that one captured launch serves: of one size, with nothing else in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import msgspec

from treeproof.contract.case import Request, VerifyCase
from treeproof.generate.related import chain_of, hung_on, hung_over, with_requests


@dataclass(frozen=True)
class Batches:
    """Cases with as many requests, rows of each and slots, in the order in which they come.

    `captured`: chains of real rows only behind the shortest prefixes, as engines capture them. `before`:
    the longest prefixes and other trees. `last`: the case itself, each request padded with rows, and
    behind them perhaps a request of one node where the others had a whole one.
    """

    captured: VerifyCase
    before: VerifyCase
    last: VerifyCase

    @property
    def all(self) -> tuple[VerifyCase, ...]:
        return self.captured, self.before, self.last


def batches(case: VerifyCase) -> Iterator[Batches]:
    """Ways to do so, the one that asks most of a backend first; none where the contract has none."""
    for more, chained, one_more in product((5, 0), (False, True), (True, False)):
        try:
            yield _batches(case, more, chained=chained, one_more=one_more)
        except ValueError:  # a mask word is full, say
            continue


def _batches(case: VerifyCase, more: int, *, chained: bool, one_more: bool) -> Batches:
    shortest = max(1, case.layout.shared_prefix)
    every = [*case.requests, *case.requests[:one_more]]
    before = [_longer(request, more, case.layout.page_size, chained) for request in every]
    rows = [request.num_rows for request in before]
    captured = [
        _all_real(request, count, shortest) for request, count in zip(every, rows, strict=True)
    ]
    last = [_padded(request, count) for request, count in zip(every, rows, strict=True)]
    if one_more:
        last[-1] = _padded(_alone(every[-1], shortest), rows[-1])
    return Batches(*_of_one_size(case, (captured, before, last)))


def _of_one_size(case: VerifyCase, every: Sequence[Sequence[Request]]) -> Iterator[VerifyCase]:
    """The last one has the numbers of the case, the others have their own, and other slots."""
    made = [with_requests(case, requests, shared=True) for requests in every]
    slots = max(one.layout.num_slots for one in made)
    for number, one in enumerate(made, start=1 - len(made)):
        layout = msgspec.structs.replace(one.layout, num_slots=slots)
        seed = (case.seed - number) % 2**63
        yield msgspec.structs.replace(one, layout=layout, seed=seed)


def _longer(request: Request, more: int, page: int, chained: bool) -> Request:
    """Another tree of `more` nodes more, and a prefix that is longer by a page and as many keys: no row of
    a captured chain has as many."""
    prefix = request.prefix_len + page + request.num_rows + more
    longer = msgspec.structs.replace(request, prefix_len=prefix, prefix_tokens=())
    return (
        hung_on(longer, chain_of(len(request.tree) + more)) if chained else hung_over(longer, more)
    )


def _all_real(request: Request, rows: int, prefix: int) -> Request:
    short = msgspec.structs.replace(request, prefix_len=prefix, prefix_tokens=(), pad_rows=0)
    return hung_on(short, chain_of(rows))


def _alone(request: Request, prefix: int) -> Request:
    return hung_on(
        msgspec.structs.replace(request, prefix_len=prefix, prefix_tokens=()), chain_of(1)
    )


def _padded(request: Request, rows: int) -> Request:
    return msgspec.structs.replace(request, pad_rows=rows - request.num_nodes)
