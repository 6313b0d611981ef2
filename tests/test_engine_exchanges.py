"""Cases that can lose no single thing, and are left all the same for a smaller one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace
from test_engine_reducer import random_case

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.engine import reducer
from treeproof.engine.exchanges import MOST_TOKENS, exchanges
from treeproof.engine.reducer import reduce
from treeproof.engine.removals import Edit
from treeproof.engine.simplify import keep_nodes, with_request, with_window
from treeproof.generate.units import draw, units

Holds = Callable[[VerifyCase], bool]


def a_fork_or_a_key(case: VerifyCase) -> bool:
    return any(len(r.tree) >= 3 or r.prefix_len for r in case.requests)


def two_keys_or_a_pair(case: VerifyCase) -> bool:
    """A tree of one node and two keys has no smaller one but by a node."""
    return any(r.prefix_len >= 2 or (r.prefix_len == 0 and len(r.tree) == 2) for r in case.requests)


def a_path_off_the_first_rows(case: VerifyCase) -> bool:
    """Accepting a path of three moves a row that is not the path's first draft."""
    for request in case.requests:
        for leaf in request.tree.leaves:
            rows = [request.row_of_node[node] for node in request.tree.path(leaf)]
            if any(row != step for step, row in enumerate(rows) if step >= 2):
                return True
    return False


def slots_out_of_step(case: VerifyCase) -> bool:
    """Counted by slot, a window of the last keys misses the root or takes it in."""
    width = case.shape.window
    backwards = case.layout.order == "reversed"
    return width is not None and any(
        (len(r.tree) > width and backwards) or (len(r.tree) > width and _fan(r) > 1)
        for r in case.requests
    )


def _fan(request: Request) -> int:
    return max(len(request.tree.children(node)) for node in range(len(request.tree)))


def padding_of_some_seeds(case: VerifyCase) -> bool:
    """A padded row shows it where the seed has its bit, or another request does."""
    padded = any(r.pad_rows for r in case.requests)
    return padded and (case.seed % 4 == 2 or len(case.requests) > 1)


def a_longer_request_first(case: VerifyCase) -> bool:
    """Beside a padded row in any order; without it the longer one must stand first."""
    sizes = [len(r.tree) for r in case.requests]
    falls = any(a > b for a, b in pairwise(sizes))
    rises = any(a < b for a, b in pairwise(sizes)) and any(r.pad_rows for r in case.requests)
    return rises or (falls and case.seed % 2 == 1)


def tokens_alike_in_eight_bits(case: VerifyCase) -> bool:
    """Siblings that a float of 8 bits does not tell apart, or any pair of the largest tokens."""
    for request in case.requests:
        tree = request.tree
        if len(tree) == 2 and min(tree.tokens) > 1 << 30:
            return True
        for node in range(len(tree)):
            short = [_eight_bits(tree.tokens[child]) for child in tree.children(node)]
            if len(set(short)) < len(short):
                return True
    return False


def _eight_bits(token: int) -> bytes:
    return struct.pack(">f", token)[:2]


def thirty_five_nodes_or_a_chain_of_33(case: VerifyCase) -> bool:
    return any(len(r.tree) >= 35 or max(r.tree.depth) >= 32 for r in case.requests)


def alike_tokens(case: VerifyCase) -> VerifyCase:
    """Tokens of neighbouring nodes are close to each other, as far as siblings must not be equal."""
    requests = []
    for request in case.requests:
        tokens = tuple(60_000 + node for node in range(len(request.tree)))
        requests.append(replace(request, tree=CandidateTree(tokens, request.tree.parents)))
    return replace(case, requests=tuple(requests))


def drawn() -> Iterator[VerifyCase]:
    """One request or two, the first one smaller; tokens alike, and a window within the tree."""
    for seed in range(24):
        case = alike_tokens(random_case(seed, size=40, requests=1 + seed % 2))
        if seed % 2:
            case = with_request(case, 0, keep_nodes(case.requests[0], range(30)))
        yield with_window(case, 2)


KNOWN: list[tuple[Holds, int, int]] = [
    (a_fork_or_a_key, 2, 3),
    (two_keys_or_a_pair, 2, 3),
    (a_path_off_the_first_rows, 3, 4),
    (slots_out_of_step, 2, 3),
    (padding_of_some_seeds, 2, 3),
    (a_longer_request_first, 3, 4),
    (tokens_alike_in_eight_bits, 2, 3),
    (thirty_five_nodes_or_a_chain_of_33, 33, 35),
]


def tokens_of(case: VerifyCase) -> int:
    return sum(r.num_nodes + r.prefix_len + r.pad_rows for r in case.requests)


def largest(holds: Holds) -> int:
    """Of the smallest cases of all cases that are drawn and show it."""
    failing = [case for case in drawn() if holds(case)]
    assert len(failing) >= 5
    sizes = []
    for case in failing[:8]:
        reduction = reduce(case, holds)
        assert reduction.complete
        assert holds(reduction.case)
        sizes.append(tokens_of(reduction.case))
    return max(sizes)


@pytest.mark.parametrize(
    ("holds", "smallest", "without"), KNOWN, ids=lambda v: getattr(v, "__name__", "")
)
def test_an_exchange_leads_where_no_single_removal_does(
    holds: Holds, smallest: int, without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert largest(holds) == smallest
    monkeypatch.setattr(reducer, "exchanges", lambda case: iter(()))
    assert largest(holds) == without


def test_every_exchange_leaves_fewer_nodes_keys_and_padded_rows() -> None:
    cases = [case for unit in units("quick", 3, 60) for case in draw(unit)]
    small = [case for case in cases if 1 < tokens_of(case) <= MOST_TOKENS]
    assert len(small) >= 10
    for case in small:
        valid = 0
        for edit in exchanges(case):
            try:
                smaller = edit(case)
            except ValueError:
                continue
            valid += 1
            assert tokens_of(smaller) < tokens_of(case)
        assert valid


def test_a_root_alone_and_a_large_case_have_no_exchanges() -> None:
    root = Request(tree=CandidateTree((0,), (-1,)), row_of_node=(0,), prefix_len=0)
    case = replace(random_case(1), requests=(root,))
    assert not any(tokens_of(edit(case)) < 1 for edit in _valid(case))
    assert list(exchanges(random_case(1))) == []


def _valid(case: VerifyCase) -> Iterator[Edit]:
    for edit in exchanges(case):
        try:
            edit(case)
        except ValueError:
            continue
        yield edit


def test_what_the_limit_leaves_unfinished_after_an_exchange_is_not_taken() -> None:
    case = next(c for c in drawn() if a_path_off_the_first_rows(c))
    whole = reduce(case, a_path_off_the_first_rows)
    assert tokens_of(whole.case) == 3
    limits = range(whole.evaluations + 1)
    found = [reduce(case, a_path_off_the_first_rows, limit) for limit in limits]
    complete = [reduction.complete for reduction in found]
    assert complete == sorted(complete)
    sizes = [tokens_of(reduction.case) for reduction in found if reduction.complete]
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes) == {4, 3}
