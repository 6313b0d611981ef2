"""The first cuts of a reduction: the largest that there are, before anything is tried one by one."""

from __future__ import annotations

from functools import partial

from treeproof.contract.case import Request, VerifyCase
from treeproof.engine import simplify
from treeproof.engine.removals import Edit
from treeproof.engine.search import Search

SHORTEST_BITS = 8
"""Prefixes below this power of two are cheap enough as they are."""


def cut_first(search: Search) -> None:
    """Everything but a root; or the prefixes; or, where they are far, most of them; or the rest."""
    if not search.attempt(_a_root) and not search.attempt(_bare) and not _shortened(search):
        search.attempt(_plain)


def _a_root(case: VerifyCase) -> VerifyCase:
    """The least that there is. Many failures need no more, and a try at it costs next to nothing."""
    root = partial(simplify.keep_nodes, kept=())
    return _bare(simplify.each_request(simplify.keep_requests(case, {0}), root))


def _bare(case: VerifyCase) -> VerifyCase:
    """The same without any prefix, which makes most of what a case costs."""
    least = 1 if case.script else 0  # a script needs a prompt
    return _plain(simplify.each_request(case, partial(simplify.with_prefix, length=least)))


def _shortened(search: Search) -> bool:
    """Prefixes cut to what is left of them at a power of two, the shortest first: those that do not
    fail cost little, while each try at a far prefix may take seconds."""
    longest = max(request.prefix_len for request in search.case.requests)
    for bits in range(SHORTEST_BITS, longest.bit_length(), 2):
        for simplest in (_plain, _as_it_is):
            cut = partial(_with_low_bits, bits=bits, simplest=simplest)
            if search.attempt(cut):
                return simplest is _plain
    return False


def _with_low_bits(case: VerifyCase, bits: int, simplest: Edit) -> VerifyCase:
    def edit(request: Request) -> Request:
        return simplify.with_prefix(request, request.prefix_len & ((1 << bits) - 1))

    return simplest(simplify.each_request(case, edit))


def _as_it_is(case: VerifyCase) -> VerifyCase:
    return case


def _plain(case: VerifyCase) -> VerifyCase:
    """All that is not requests, nodes and prefix at its simplest, in one step."""
    return simplify.simplest_shape(simplify.simplest_layout(simplify.simplest_rows(case)))
