"""Candidates, read back by a plain-Python walk through the pool's index space."""

import random

import pytest
import torch

from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree
from treeproof.generate.pool import candidates

SHAPE = AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16)


def any_tree(rng, nodes):
    back = rng.choice([1, 2, 5, nodes])
    parents = (-1, *(rng.randrange(max(0, i - back), i) for i in range(1, nodes)))
    return CandidateTree(tuple(rng.sample(range(10_000), nodes)), parents)


def any_order(rng, nodes):
    return (0, *rng.sample(range(1, nodes), nodes - 1))


def case_of(*requests, mask=None, seed=5, page_size=1, num_slots=4096):
    return VerifyCase(
        requests=requests,
        shape=SHAPE,
        layout=KVLayout(page_size=page_size, num_slots=num_slots),
        mask=mask or MaskLayout(),
        seed=seed,
    )


def request_of(rng, nodes, prefix_len=3, pad_rows=0):
    tree = any_tree(rng, nodes)
    return Request(
        tree=tree,
        row_of_node=any_order(rng, nodes),
        prefix_len=prefix_len,
        pad_rows=pad_rows,
    )


def given(case):
    return candidates(case, SlotLedger.of(case))


def paths_of(c, b):
    """Token path of each real row, following pool indices from child to parent."""
    selected, parent_list = c.selected_index[b].tolist(), c.parent_list[b].tolist()
    token = {s: t for s, t in zip(selected, c.draft_token[b].tolist(), strict=True) if s >= 0}
    paths = [[int(c.bonus_tokens[b])]]
    for s in selected[: int(c.num_nodes[b]) - 1]:
        path = [token[s]]
        while s // c.topk:
            s = parent_list[s // c.topk]
            path.insert(0, token[s])
        paths.append([int(c.bonus_tokens[b]), *path])
    return paths


def drawn_paths(request):
    def path(node):
        parent = request.tree.parents[node]
        return ([] if parent < 0 else path(parent)) + [request.tree.tokens[node]]

    by_row = [0] * len(request.tree)
    for node, row in enumerate(request.row_of_node):
        by_row[row] = node
    return [path(node) for node in by_row]


@pytest.mark.parametrize("seed", range(60))
def test_the_drawn_tree_comes_back_for_any_rows_ragged_and_padded(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 3, 9, 33, 65]) for _ in range(rng.randint(1, 4))]
    case = case_of(*(request_of(rng, n, pad_rows=rng.choice([0, 0, 3])) for n in sizes), seed=seed)
    got = given(case)
    for b, request in enumerate(case.requests):
        assert paths_of(got, b) == drawn_paths(request)


def test_following_a_wrong_cell_does_not_give_the_tree_back():
    tree = CandidateTree((0, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 2, 4))
    got = given(case_of(Request(tree=tree, row_of_node=tuple(range(6)), prefix_len=0)))
    right = paths_of(got, 0)
    # Topk is 2: cells 1 and 2 lead to the two children of the root, which now change places.
    got.parent_list[0, [1, 2]] = got.parent_list[0, [2, 1]]
    assert right[3] == [0, 1, 3]
    assert paths_of(got, 0)[3] == [0, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_pool_indices_are_those_of_an_eagle_pool(seed):
    rng = random.Random(seed)
    got = given(case_of(request_of(rng, 40), request_of(rng, 12), seed=seed))
    k, steps = got.topk, got.spec_steps
    for b in range(2):
        real = [int(s) for s in got.selected_index[b] if s >= 0]
        assert len(set(real)) == len(real) == int(got.num_nodes[b]) - 1
        assert max(real) < k + (steps - 1) * k * k
        depths = [len(path) - 1 for path in paths_of(got, b)[1:]]
        levels = [1 if s < k else 2 + (s - k) // (k * k) for s in real]
        assert levels == depths
        # Each beam slot of the first level is the depth-1 candidate of the same number.
        assert all(
            int(got.parent_list[b, s // k]) == s // k - 1 for s in real if k <= s < k + k * k
        )


def test_topk_and_spec_steps_are_the_smallest_that_hold_every_tree():
    star = CandidateTree((0, 1, 2, 3), (-1, 0, 0, 0))
    chain = CandidateTree((0, 1, 2, 3), (-1, 0, 1, 2))
    # Two nodes at depth 1 that have children, none with more than two.
    forked = CandidateTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 2))
    three = CandidateTree(tuple(range(7)), (-1, 0, 0, 0, 1, 2, 3))
    root = CandidateTree((7,), (-1,))

    def dims(*trees):
        requests = [Request(tree=t, row_of_node=tuple(range(len(t))), prefix_len=0) for t in trees]
        got = given(case_of(*requests))
        return got.topk, got.spec_steps, tuple(got.parent_list.shape)

    assert dims(root) == (1, 1, (1, 0))
    assert dims(star) == (3, 1, (1, 0))
    assert dims(chain) == (1, 3, (1, 3))
    assert dims(forked) == (2, 2, (1, 3))
    assert dims(three) == (3, 2, (1, 4))
    assert dims(star, chain) == (3, 3, (2, 7))


def test_breadth_first_rows_have_ascending_pool_indices():
    tree = CandidateTree(tuple(range(9)), (-1, 0, 0, 0, 1, 1, 3, 4, 6))
    got = given(case_of(Request(tree=tree, row_of_node=tuple(range(9)), prefix_len=0)))
    selected = got.selected_index[0].tolist()
    assert selected == sorted(selected)


def test_padding_is_minus_one_and_counted_apart():
    rng = random.Random(3)
    got = given(case_of(request_of(rng, 4, pad_rows=2), request_of(rng, 9), request_of(rng, 1)))
    assert got.num_nodes.tolist() == [4, 9, 1]
    assert got.num_rows.tolist() == [6, 9, 1]
    assert got.selected_index.shape == got.draft_token.shape == (3, 8)
    assert got.selected_index[0, 3:].tolist() == [-1] * 5
    assert got.draft_token[0, 3:].tolist() == [-1] * 5
    assert got.selected_index[2].tolist() == [-1] * 8
    assert int((got.selected_index >= 0).sum()) == 3 + 8


def test_cells_that_no_candidate_reaches_hold_garbage_inside_the_pool():
    rng = random.Random(4)
    case = case_of(request_of(rng, 30))
    got, other = given(case), given(case_of(case.requests[0], seed=6))
    reached = {int(s) // got.topk for s in got.selected_index[0]} - {0}
    free = [c for c in range(got.parent_list.shape[1]) if c not in reached]
    pool = got.topk + (got.spec_steps - 1) * got.topk**2
    values = [int(got.parent_list[0, c]) for c in free]
    assert free
    assert all(-1 <= v < pool for v in values)
    assert values != [int(other.parent_list[0, c]) for c in free]


@pytest.mark.parametrize(
    ("rows", "mode", "dtype", "count"),
    [
        ((4, 9), MaskMode.FULL_MASK, torch.bool, 4 * (3 + 4) + 9 * (3 + 9)),
        ((4, 9), MaskMode.QLEN_ONLY, torch.bool, 16 + 81),
        ((4, 8), MaskMode.QLEN_ONLY_BITPACKING, torch.uint8, 12),
        ((4, 9), MaskMode.QLEN_ONLY_BITPACKING, torch.uint16, 13),
        ((17, 9), MaskMode.QLEN_ONLY_BITPACKING, torch.uint32, 26),
    ],
)
@pytest.mark.parametrize("slack", [0, 37])
def test_the_mask_buffer_is_as_long_as_its_mode_needs_and_full_of_garbage(
    rows, mode, dtype, count, slack
):
    rng = random.Random(0)
    mask = MaskLayout(mode=mode, slack=slack)
    requests = [request_of(rng, rows[0] - 1, pad_rows=1), request_of(rng, rows[1])]
    buffer = given(case_of(*requests, mask=mask)).mask_buffer
    assert buffer.dtype == dtype
    assert buffer.shape == (count + slack,)
    raw = buffer.view(torch.uint8)
    assert len(set(raw.tolist())) == 2 if dtype == torch.bool else len(set(raw.tolist())) > 2


def test_lengths_tables_and_layout_come_from_the_case_and_its_ledger():
    rng = random.Random(8)
    mask = MaskLayout(fill_prefix=False)
    case = case_of(request_of(rng, 5, prefix_len=7), request_of(rng, 3, prefix_len=2), mask=mask)
    ledger = SlotLedger.of(case)
    got = candidates(case, ledger)
    assert got.seq_lens.tolist() == [7, 2]
    for b, request in enumerate(case.requests):
        row = got.req_to_token[int(got.request_slots[b])].tolist()
        assert tuple(row[: request.prefix_len + request.num_nodes]) == ledger.columns[b]
    assert (got.shape, got.kv, got.mask_mode) == (case.shape, case.layout, MaskMode.FULL_MASK)
    assert got.fill_prefix_mask is False
    integers = ["bonus_tokens", "parent_list", "selected_index", "draft_token", "num_rows"]
    integers += ["num_nodes", "seq_lens", "request_slots", "req_to_token"]
    assert {getattr(got, name).dtype for name in integers} == {torch.int64}
