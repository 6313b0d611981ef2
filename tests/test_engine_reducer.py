"""The reducer on predicates whose smallest cases are known by thought, not by running it."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import KVLayout, MaskLayout, MaskMode
from treeproof.contract.shape import AttentionShape, Window
from treeproof.contract.tree import CandidateTree
from treeproof.engine import simplify
from treeproof.engine.reducer import Reduction, reduce

Predicate = Callable[[CandidateTree], bool]
LIMIT = 300


def random_tree(rng: random.Random, size: int) -> CandidateTree:
    kind = rng.choice(["any", "deep", "flat"])
    parents = [-1]
    for node in range(1, size):
        least = max(0, node - 3) if kind == "deep" else 0
        most = min(node - 1, 5) if kind == "flat" else node - 1
        parents.append(rng.randint(least, most))
    tokens = list(range(100, 100 + size))
    if rng.random() < 0.5:  # cousins that share a token: hoisting one beside the other clashes
        seen: set[tuple[int, int]] = set()
        for node in range(1, size):
            token = rng.randrange(8)
            if (parents[node], token) not in seen:
                tokens[node] = token
            seen.add((parents[node], tokens[node]))
    return CandidateTree(tuple(tokens), tuple(parents))


def random_request(rng: random.Random, size: int) -> Request:
    rows = [0, *rng.sample(range(1, size), size - 1)]
    return Request(
        tree=random_tree(rng, size),
        row_of_node=tuple(rows),
        prefix_len=rng.randint(100, 700),
        pad_rows=rng.randint(0, 5),
    )


def random_case(seed: int, size: int = 64, requests: int = 2) -> VerifyCase:
    rng = random.Random(seed)
    return VerifyCase(
        requests=tuple(random_request(rng, size) for _ in range(requests)),
        shape=AttentionShape(
            num_q_heads=8,
            num_kv_heads=4,
            head_dim=128,
            v_head_dim=64,
            dtype="bfloat16",
            rotary=10000.0,
            visibility=Window(width=96),
        ),
        layout=KVLayout(
            page_size=16, num_slots=4096, order="shuffled", page_table_pad=-1, evicted=True
        ),
        mask=MaskLayout(mode=MaskMode.QLEN_ONLY, slack=40),
        seed=seed + 1,
        score_spread=4.0,
    )


def some_tree(holds: Predicate) -> Callable[[VerifyCase], bool]:
    return lambda case: any(holds(request.tree) for request in case.requests)


def depth_of_6(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 6


def fan_out_of_5(tree: CandidateTree) -> bool:
    return any(len(tree.children(i)) >= 5 for i in range(len(tree)))


def fan_out_of_4_at_depth_2(tree: CandidateTree) -> bool:
    return any(len(tree.children(i)) >= 4 and tree.depth[i] >= 2 for i in range(len(tree)))


def depth_of_7_and_fan_out_of_4(tree: CandidateTree) -> bool:
    return max(tree.depth) >= 7 and any(len(tree.children(i)) >= 4 for i in range(len(tree)))


def cousins_and_a_grandchild(tree: CandidateTree) -> bool:
    """Two nodes of depth 2 under different parents, one of them with a child."""
    second = [i for i in range(len(tree)) if tree.depth[i] == 2]
    return any(
        tree.parents[a] != tree.parents[b] and tree.children(a) for a in second for b in second
    )


def at_least_33_nodes(tree: CandidateTree) -> bool:
    return len(tree) >= 33


KNOWN = [
    (depth_of_6, 7),
    (fan_out_of_5, 6),
    (fan_out_of_4_at_depth_2, 7),
    (depth_of_7_and_fan_out_of_4, 11),
    (cousins_and_a_grandchild, 6),
    (at_least_33_nodes, 33),
]


@pytest.mark.parametrize(
    ("holds", "smallest"), KNOWN, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_tree_fault_reduces_to_its_smallest_tree(holds: Predicate, smallest: int) -> None:
    tried = 0
    for seed in range(40):
        case = random_case(seed)
        if not some_tree(holds)(case):
            continue
        tried += 1
        reduction = reduce(case, some_tree(holds), LIMIT)
        assert [len(r.tree) for r in reduction.case.requests] == [smallest], f"seed {seed}"
        assert reduction.evaluations <= LIMIT
        assert reduction.complete
    assert tried >= 5


def test_everything_that_does_not_matter_goes_to_its_simplest() -> None:
    (request,) = reduce(random_case(1), lambda case: True).case.requests
    assert request == Request(tree=CandidateTree((0,), (-1,)), row_of_node=(0,), prefix_len=0)
    case = reduce(random_case(1), lambda case: True).case
    assert case.shape == AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8)
    assert case.layout == KVLayout(page_size=1, num_slots=2)  # the pad page and the root
    assert (case.mask, case.seed, case.score_spread) == (MaskLayout(), 0, 1.0)


EXTRAS = {"scale": 0.3, "softcap": 30.0, "sinks": True, "alibi": True, "kv_dtype": "int8"}


@pytest.mark.parametrize("kept", EXTRAS)
def test_of_all_that_makes_a_score_only_what_matters_is_kept(kept: str) -> None:
    case = random_case(3)
    case = replace(case, shape=replace(case.shape, **EXTRAS))
    found = reduce(case, lambda c: getattr(c.shape, kept) == EXTRAS[kept]).case.shape
    plain = {"scale": None, "softcap": None, "sinks": False, "alibi": False, "kv_dtype": None}
    assert {name: getattr(found, name) for name in EXTRAS} == plain | {kept: EXTRAS[kept]}


def smaller_by_one(case: VerifyCase) -> list[VerifyCase]:
    """Every case that lacks one request, node, prefix token, padded row or head. Not the
    reducer's own moves: written out once more from the words of the promise."""
    found: list[VerifyCase] = []
    for b, request in enumerate(case.requests):
        if len(case.requests) > 1:
            found.append(replace(case, requests=case.requests[:b] + case.requests[b + 1 :]))
        variants = [
            simplify.keep_nodes(request, [i for i in range(len(request.tree)) if i != node])
            for node in range(1, len(request.tree))
        ]
        if request.prefix_len:
            variants.append(replace(request, prefix_len=request.prefix_len - 1))
        if request.pad_rows:
            variants.append(replace(request, pad_rows=request.pad_rows - 1))
        for variant in variants:
            found.append(
                replace(case, requests=(*case.requests[:b], variant, *case.requests[b + 1 :]))
            )
    q, kv = case.shape.num_q_heads, case.shape.num_kv_heads
    for heads in ((q - q // kv, kv - 1), (q - kv, kv)):
        if min(heads) > 0:
            shape = replace(case.shape, num_q_heads=heads[0], num_kv_heads=heads[1])
            found.append(replace(case, shape=shape))
    return found


def mixed_fault(case: VerifyCase) -> bool:
    """Needs two requests, 5 keys of prefix in one, a padded row, two key heads of three queries."""
    return (
        len(case.requests) >= 2
        and any(r.prefix_len >= 5 and len(r.tree) >= 3 for r in case.requests)
        and any(r.pad_rows >= 1 for r in case.requests)
        and case.shape.num_kv_heads >= 2
        and case.shape.num_q_heads >= 6
    )


def test_nothing_single_can_be_left_out_of_the_result() -> None:
    case = replace(random_case(7, size=24, requests=3), mask=MaskLayout())
    case = replace(case, requests=tuple(replace(r, pad_rows=3) for r in case.requests))
    assert mixed_fault(case)
    reduction = reduce(case, mixed_fault)
    assert reduction.complete
    assert mixed_fault(reduction.case)
    neighbours = smaller_by_one(reduction.case)
    assert len(neighbours) >= 5
    assert [c for c in neighbours if mixed_fault(c)] == []


def test_a_fault_at_the_edge_of_a_window_keeps_the_window_and_little_else() -> None:
    def window_cuts_inside_the_tree(case: VerifyCase) -> bool:
        width = case.shape.window
        return width is not None and any(
            r.prefix_len > 0 and max(r.tree.depth) >= width for r in case.requests
        )

    case = random_case(3)
    case = replace(case, shape=replace(case.shape, visibility=Window(width=3)))
    reduction = reduce(case, window_cuts_inside_the_tree)
    assert reduction.case.shape.window == 1
    (request,) = reduction.case.requests
    assert (len(request.tree), request.prefix_len) == (2, 1)


def test_window_and_prefix_shrink_together_where_neither_can_alone() -> None:
    def prefix_one_longer_than_window(case: VerifyCase) -> bool:
        return any(r.prefix_len - 1 == case.shape.window for r in case.requests)

    case = random_case(3)
    case = replace(case, requests=tuple(replace(r, prefix_len=97) for r in case.requests))
    reduction = reduce(case, prefix_one_longer_than_window)
    assert (reduction.case.shape.window, reduction.case.requests[0].prefix_len) == (1, 2)


def test_a_row_order_that_matters_is_kept_among_the_rows_that_stay() -> None:
    def child_before_parent(case: VerifyCase) -> bool:
        return any(parent > row for r in case.requests for row, parent in enumerate(r.parent_rows))

    reduction = reduce(random_case(2), child_before_parent)
    (request,) = reduction.case.requests
    assert (request.tree.parents, request.row_of_node) == ((-1, 0, 1), (0, 2, 1))


def test_the_limit_is_kept_and_said() -> None:
    calls: list[VerifyCase] = []

    def fails(case: VerifyCase) -> bool:
        calls.append(case)
        return some_tree(at_least_33_nodes)(case)

    reduction = reduce(random_case(1), fails, limit=5)
    assert (len(calls), reduction.evaluations, reduction.complete) == (5, 5, False)


def test_no_candidate_is_tried_twice_and_the_result_is_the_same_again() -> None:
    def run() -> tuple[Reduction, list[str]]:
        tried: list[str] = []

        def fails(case: VerifyCase) -> bool:
            tried.append(case.id)
            return some_tree(cousins_and_a_grandchild)(case)

        return reduce(random_case(5), fails), tried

    first, tried = run()
    assert len(set(tried)) == len(tried)
    assert run() == (first, tried)


def test_shared_pages_and_more_pages_are_found_room_for() -> None:
    """Giving each request pages of its own needs a larger cache, which the edit must make."""
    requests = tuple(
        Request(tree=CandidateTree((1, 2), (-1, 0)), row_of_node=(0, 1), prefix_len=32)
        for _ in range(3)
    )
    case = VerifyCase(
        requests=requests,
        shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8),
        layout=KVLayout(page_size=16, num_slots=96, shared_prefix=32),
    )
    assert case.pages_needed == 6
    apart = simplify.with_layout(case, shared_prefix=0)
    assert (apart.layout.num_slots, apart.layout.shared_prefix) == (160, 0)


def test_few_lanes_do_not_stand_in_the_way() -> None:
    """8 lanes tell 256 slots apart, so heads shrink only once the cache has."""
    case = random_case(4)
    shape = replace(case.shape, head_dim=16, v_head_dim=16)
    case = replace(case, shape=shape)

    def fails(case: VerifyCase) -> bool:
        return case.layout.order == "shuffled" and some_tree(depth_of_6)(case)

    assert fails(case)
    reduction = reduce(case, fails)
    assert reduction.complete
    assert [len(r.tree) for r in reduction.case.requests] == [7]
    assert (reduction.case.shape.head_dim, reduction.case.layout.num_slots) == (8, 8)
