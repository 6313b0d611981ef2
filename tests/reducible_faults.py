"""Faults as predicates over cases, each with the size of its smallest cases, known by thought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import MaskMode
from treeproof.contract.tree import CandidateTree

Holds = Callable[[VerifyCase], bool]


@dataclass(frozen=True)
class Size:
    """Of a smallest case. Totals over its requests; `window` 0 is none."""

    nodes: int = 1
    prefix: int = 0
    requests: int = 1
    pad_rows: int = 0
    q_heads: int = 1
    kv_heads: int = 1
    page: int = 1
    window: int = 0


def size_of(case: VerifyCase) -> Size:
    return Size(
        nodes=sum(len(r.tree) for r in case.requests),
        prefix=sum(r.prefix_len for r in case.requests),
        requests=len(case.requests),
        pad_rows=sum(r.pad_rows for r in case.requests),
        q_heads=case.shape.num_q_heads,
        kv_heads=case.shape.num_kv_heads,
        page=case.layout.page_size,
        window=case.shape.window or 0,
    )


@dataclass(frozen=True)
class Fault:
    name: str
    holds: Holds
    smallest: tuple[Size, ...]
    """Sizes that a case may have from which nothing single can go."""


FAULTS: list[Fault] = []


def fault(*smallest: Size) -> Callable[[Holds], Holds]:
    def add(holds: Holds) -> Holds:
        FAULTS.append(Fault(holds.__name__, holds, smallest))
        return holds

    return add


def tree_fault(nodes: int) -> Callable[[Callable[[CandidateTree], bool]], None]:
    """A fault that one tree of the batch shows by its shape alone."""

    def add(holds: Callable[[CandidateTree], bool]) -> None:
        def in_some_tree(case: VerifyCase) -> bool:
            return any(holds(request.tree) for request in case.requests)

        FAULTS.append(Fault(holds.__name__, in_some_tree, (Size(nodes=nodes),)))

    return add


def _fan(tree: CandidateTree, node: int) -> int:
    return len(tree.children(node))


def _leaves(tree: CandidateTree) -> list[int]:
    return [node for node in range(len(tree)) if not tree.children(node)]


@tree_fault(2)
def a_child(tree: CandidateTree) -> bool:
    return len(tree) > 1


@tree_fault(4)
def depth_3(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 3


@tree_fault(7)
def depth_6(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 6


@tree_fault(13)
def depth_12(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 12


@tree_fault(3)
def siblings(tree: CandidateTree) -> bool:
    return any(_fan(tree, node) >= 2 for node in range(len(tree)))


@tree_fault(6)
def five_siblings(tree: CandidateTree) -> bool:
    return any(_fan(tree, node) >= 5 for node in range(len(tree)))


@tree_fault(5)
def three_siblings_below_depth_1(tree: CandidateTree) -> bool:
    return any(_fan(tree, node) >= 3 and tree.depth[node] >= 1 for node in range(len(tree)))


@tree_fault(11)
def depth_7_and_four_siblings(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 7 and any(_fan(tree, node) >= 4 for node in range(len(tree)))


@tree_fault(4)
def leaves_of_two_depths(tree: CandidateTree) -> bool:
    return len({tree.depth[leaf] for leaf in _leaves(tree)}) >= 2


@tree_fault(4)
def three_leaves(tree: CandidateTree) -> bool:
    return len(_leaves(tree)) >= 3


@tree_fault(5)
def cousins(tree: CandidateTree) -> bool:
    second = [i for i in range(len(tree)) if tree.depth[i] == 2]
    return len({tree.parents[i] for i in second}) >= 2


@tree_fault(6)
def cousins_and_a_grandchild(tree: CandidateTree) -> bool:
    second = [i for i in range(len(tree)) if tree.depth[i] == 2]
    return any(
        tree.parents[a] != tree.parents[b] and tree.children(a) for a in second for b in second
    )


@tree_fault(6)
def a_sibling_at_depth_4(tree: CandidateTree) -> bool:
    return any(tree.depth[i] >= 3 and _fan(tree, i) >= 2 for i in range(len(tree)))


@tree_fault(17)
def more_nodes_than_a_tile_of_16(tree: CandidateTree) -> bool:
    return len(tree) > 16


@tree_fault(33)
def more_nodes_than_a_mask_word(tree: CandidateTree) -> bool:
    return len(tree) > 32


@fault(Size(nodes=2), Size(nodes=3), Size(nodes=4))
def one_token_twice(case: VerifyCase) -> bool:
    """Two nodes with the root, three below it, four where an aunt and a niece cannot become siblings."""
    return any(len(set(r.tree.tokens)) < len(r.tree) for r in case.requests)


@fault(Size(prefix=1))
def any_prefix(case: VerifyCase) -> bool:
    return any(r.prefix_len for r in case.requests)


@fault(Size(prefix=63))
def prefix_63(case: VerifyCase) -> bool:
    return any(r.prefix_len >= 63 for r in case.requests)


@fault(Size(prefix=500))
def prefix_500(case: VerifyCase) -> bool:
    return any(r.prefix_len >= 500 for r in case.requests)


@fault(Size(prefix=4096))
def prefix_4096(case: VerifyCase) -> bool:
    return any(r.prefix_len >= 4096 for r in case.requests)


@fault(Size(nodes=4, prefix=4096))
def three_siblings_after_a_far_prefix(case: VerifyCase) -> bool:
    return any(r.prefix_len >= 4096 and _has_fan(r, 3) for r in case.requests)


@fault(Size(prefix=7))
def prefix_7_past_a_page_of_8(case: VerifyCase) -> bool:
    return any(r.prefix_len % 8 == 7 for r in case.requests)


@fault(Size(prefix=1))
def odd_prefix(case: VerifyCase) -> bool:
    return any(r.prefix_len % 2 for r in case.requests)


@fault(Size(nodes=3, prefix=8))
def prefix_8_and_siblings(case: VerifyCase) -> bool:
    return any(r.prefix_len >= 8 and _has_fan(r, 2) for r in case.requests)


def _has_fan(request: Request, width: int) -> bool:
    return any(_fan(request.tree, node) >= width for node in range(len(request.tree)))


@fault(Size(requests=2, nodes=2, prefix=1))
def two_unequal_prefixes(case: VerifyCase) -> bool:
    return len({r.prefix_len for r in case.requests}) >= 2


@fault(Size(requests=2, nodes=3))
def two_unequal_trees(case: VerifyCase) -> bool:
    return len({len(r.tree) for r in case.requests}) >= 2


@fault(Size(requests=3, nodes=3))
def three_requests(case: VerifyCase) -> bool:
    return len(case.requests) >= 3


@fault(Size(requests=2, nodes=4))
def siblings_after_the_first_request(case: VerifyCase) -> bool:
    return any(_has_fan(r, 2) for r in case.requests[1:])


@fault(Size(requests=2, nodes=6))
def two_requests_of_depth_2(case: VerifyCase) -> bool:
    return sum(max(r.tree.depth) >= 2 for r in case.requests) >= 2


@fault(Size(requests=2, nodes=2, prefix=1))
def a_shorter_prefix_follows(case: VerifyCase) -> bool:
    lengths = [r.prefix_len for r in case.requests]
    return any(a > b for a, b in pairwise(lengths))


@fault(*(Size(requests=b, nodes=n, pad_rows=20 - n) for b in (2, 3, 4) for n in range(b, 21)))
def twenty_rows_in_two_requests(case: VerifyCase) -> bool:
    """In more than two where none of them has few enough rows to go."""
    return len(case.requests) >= 2 and case.num_rows >= 20


@fault(Size(pad_rows=1))
def a_padded_row(case: VerifyCase) -> bool:
    return any(r.pad_rows for r in case.requests)


@fault(Size(nodes=2, pad_rows=2))
def two_padded_rows_after_a_child(case: VerifyCase) -> bool:
    return any(r.pad_rows >= 2 and len(r.tree) >= 2 for r in case.requests)


@fault(Size(page=2), Size(page=2, prefix=1, nodes=2))
def a_page_partially_filled(case: VerifyCase) -> bool:
    return any((r.prefix_len + len(r.tree)) % case.layout.page_size for r in case.requests)


@fault(Size(page=2, prefix=1, nodes=2))
def a_page_boundary_inside_a_tree(case: VerifyCase) -> bool:
    page = case.layout.page_size
    return page > 1 and any(
        r.prefix_len % page and r.prefix_len // page < (r.prefix_len + len(r.tree) - 1) // page
        for r in case.requests
    )


@fault(Size(page=16, prefix=16))
def a_full_page_of_16(case: VerifyCase) -> bool:
    return case.layout.page_size >= 16 and any(
        r.prefix_len >= case.layout.page_size for r in case.requests
    )


@fault(Size(requests=2, nodes=2, prefix=2))
def a_shared_page(case: VerifyCase) -> bool:
    return len(case.requests) >= 2 and case.layout.shared_prefix > 0


@fault(Size(prefix=1, window=1))
def a_page_given_back(case: VerifyCase) -> bool:
    return any(case.evicted_columns(b) for b in range(len(case.requests)))


@fault(Size())
def forty_slots(case: VerifyCase) -> bool:
    return case.layout.num_slots >= 40


@fault(Size(nodes=3))
def pages_out_of_order(case: VerifyCase) -> bool:
    return case.layout.order != "contiguous" and any(len(r.tree) >= 3 for r in case.requests)


@fault(Size(prefix=1, window=1), Size(nodes=2, window=1))
def the_window_cuts_exactly_one_key(case: VerifyCase) -> bool:
    width = case.shape.window
    return width is not None and any(
        r.prefix_len + max(r.tree.depth) == width for r in case.requests
    )


@fault(Size(prefix=1, nodes=2, window=1))
def the_window_cuts_inside_a_tree(case: VerifyCase) -> bool:
    width = case.shape.window
    return width is not None and any(
        r.prefix_len and max(r.tree.depth) >= width for r in case.requests
    )


@fault(Size(prefix=2, window=1))
def prefix_one_longer_than_the_window(case: VerifyCase) -> bool:
    return any(r.prefix_len - 1 == case.shape.window for r in case.requests)


@fault(Size(prefix=4, window=4))
def prefix_as_long_as_a_window_of_4(case: VerifyCase) -> bool:
    return any(r.prefix_len >= (case.shape.window or 1 << 30) >= 4 for r in case.requests)


@fault(Size(q_heads=4))
def query_head_3(case: VerifyCase) -> bool:
    return case.shape.num_q_heads >= 4


@fault(Size(q_heads=2, kv_heads=2))
def key_head_1(case: VerifyCase) -> bool:
    return case.shape.num_kv_heads >= 2


@fault(Size(q_heads=4, kv_heads=2))
def grouped_heads_of_two_keys(case: VerifyCase) -> bool:
    return case.shape.num_kv_heads >= 2 and case.shape.group_size >= 2


@fault(Size(q_heads=3))
def a_group_of_three(case: VerifyCase) -> bool:
    return case.shape.group_size >= 3


@fault(Size())
def only_in_bfloat16(case: VerifyCase) -> bool:
    return case.shape.dtype == "bfloat16"


@fault(Size(nodes=7))
def depth_6_in_sixteen_bits(case: VerifyCase) -> bool:
    return case.shape.dtype != "float32" and any(max(r.tree.depth) >= 6 for r in case.requests)


@fault(Size(nodes=2))
def a_rotated_child_of_64_lanes(case: VerifyCase) -> bool:
    return (
        case.shape.rotary is not None
        and case.shape.head_dim >= 64
        and any(len(r.tree) >= 2 for r in case.requests)
    )


@fault(Size(nodes=3))
def a_child_before_its_parent(case: VerifyCase) -> bool:
    return any(parent > row for r in case.requests for row, parent in enumerate(r.parent_rows))


@fault(Size(nodes=3))
def the_last_row_has_a_child(case: VerifyCase) -> bool:
    return any(
        len(r.tree) >= 2 and r.tree.children(r.node_of_row[len(r.tree) - 1]) for r in case.requests
    )


@fault(Size(nodes=3), Size(nodes=4))
def a_deeper_row_first(case: VerifyCase) -> bool:
    """Three rows where a child stands before its parent, or four of a depth-first order."""
    for request in case.requests:
        depths = [request.tree.depth[node] for node in request.node_of_row]
        if depths != sorted(depths):
            return True
    return False


@fault(Size(nodes=3))
def siblings_in_a_mask_without_prefix(case: VerifyCase) -> bool:
    return case.mask.mode is not MaskMode.FULL_MASK and any(_has_fan(r, 2) for r in case.requests)


@fault(Size(requests=2, nodes=4, prefix=17, page=16))
def a_child_before_its_parent_beside_a_longer_prefix(case: VerifyCase) -> bool:
    """Two unequal prefixes, a full page of 16 in one of them, rows out of order in some request."""
    lengths = [r.prefix_len for r in case.requests]
    return (
        case.layout.page_size >= 16
        and len(set(lengths)) >= 2
        and max(lengths) > 16
        and a_child_before_its_parent(case)
    )
