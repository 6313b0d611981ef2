"""Greedy acceptance: recorded walks, siblings, and links that lead nowhere good."""

from dataclasses import replace

import pytest
import torch

from treeproof.backends.reference.accept import accept
from treeproof.contract.case import AttentionShape, KVLayout
from treeproof.contract.inputs import VerifyInput

SHAPE = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)


def linked(tokens, index, down, right, steps):
    """A verify input with nothing but tokens and links."""
    batch, rows = len(index), len(tokens)
    return VerifyInput(
        draft_token=torch.tensor(tokens),
        positions=torch.zeros(rows),
        seq_lens=torch.zeros(batch, dtype=torch.int64),
        qo_indptr=torch.zeros(batch + 1, dtype=torch.int64),
        out_cache_loc=torch.zeros(rows),
        request_slots=torch.zeros(batch),
        req_to_token=torch.zeros(batch, 1),
        topk=2,
        spec_steps=steps,
        shape=SHAPE,
        kv=KVLayout(page_size=1, num_slots=8),
        retrieve_index=torch.tensor(index),
        retrieve_next_token=torch.tensor(down),
        retrieve_next_sibling=torch.tensor(right),
    )


TWO_TREES = linked(
    [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12],
    [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
    [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]],
    [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]],
    steps=3,
)


def test_the_recorded_two_trees_are_walked_as_recorded():
    predicted = torch.tensor([3, 18, 18, 4, 5, 18, 11, 18, 18, 18, 12, 18])
    a = accept(TWO_TREES, predicted)
    assert a.accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]
    # SGLang counts 3 and 2 accepted drafts; accept_len counts the root as well.
    assert a.accept_len.tolist() == [4, 3]
    # SGLang's predicts[] along those rows: 3 4 5 18 and 11 12 18.
    assert a.tokens.tolist() == [[3, 4, 5, 18], [11, 12, 18, -1]]


def test_the_recorded_walk_follows_from_its_logits():
    logits = torch.ones(12, 20)
    for row, token in ((0, 3), (3, 4), (4, 5), (6, 11), (10, 12)):
        logits[row, token] = 10
    logits[(logits == 1).all(1), 18] = 10
    a = accept(TWO_TREES, logits.argmax(1))
    assert a.accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]


def test_a_chain_is_accepted_up_to_the_first_miss():
    chain = linked([10, 3, 4, 5], [[0, 1, 2, 3]], [[1, 2, 3, -1]], [[-1] * 4], steps=3)
    a = accept(chain, torch.tensor([3, 4, 9, 9]))
    assert a.accept_index.tolist() == [[0, 1, 2, -1]]
    assert a.accept_len.tolist() == [3]
    assert a.tokens.tolist() == [[3, 4, 9, -1]]


def test_nothing_accepted_leaves_the_root_and_its_prediction():
    a = accept(TWO_TREES, torch.full((12,), 19))
    assert a.accept_index.tolist() == [[0, -1, -1, -1], [6, -1, -1, -1]]
    assert a.tokens.tolist() == [[19, -1, -1, -1], [19, -1, -1, -1]]


def test_a_tree_deeper_than_the_steps_is_walked_no_further():
    chain = linked([10, 3, 4, 5], [[0, 1, 2, 3]], [[1, 2, 3, -1]], [[-1] * 4], steps=2)
    a = accept(chain, torch.tensor([3, 4, 5, 6]))
    assert a.accept_index.tolist() == [[0, 1, 2]]
    assert a.tokens.tolist() == [[3, 4, 5]]


def test_of_two_siblings_with_one_token_the_first_in_link_order_is_taken():
    twins = linked([0, 9, 9], [[0, 1, 2]], [[2, -1, -1]], [[-1, -1, 1]], steps=1)
    assert accept(twins, torch.tensor([9, 5, 6])).accept_index.tolist() == [[0, 2]]


def test_the_token_of_the_root_is_never_compared():
    looped = linked([9, 1], [[0, 1]], [[1, -1]], [[-1, -1]], steps=1)
    assert accept(looped, torch.tensor([9, 9])).accept_index.tolist() == [[0, -1]]


def test_siblings_in_a_circle_end_the_walk():
    circle = linked([0, 1, 2], [[0, 1, 2]], [[1, -1, -1]], [[-1, 2, 1]], steps=2)
    assert accept(circle, torch.tensor([7, 7, 7])).accept_index.tolist() == [[0, -1, -1]]


def test_a_child_that_is_its_own_parent_is_walked_at_most_the_steps():
    knot = linked([0, 5], [[0, 1]], [[1, 1]], [[-1, -1]], steps=3)
    assert accept(knot, torch.tensor([5, 5])).accept_index.tolist() == [[0, 1, 1, 1]]


def test_a_swapped_link_changes_the_walk():
    wrong = linked(
        TWO_TREES.draft_token.tolist(),
        TWO_TREES.retrieve_index.tolist(),
        [[1, 2, -1, -1, 5, -1], [4, 2, 3, -1, 5, -1]],
        TWO_TREES.retrieve_next_sibling.tolist(),
        steps=3,
    )
    predicted = torch.tensor([3, 18, 18, 4, 5, 18, 11, 18, 18, 18, 12, 18])
    assert accept(wrong, predicted).accept_index.tolist()[0] == [0, 3, -1, -1]


def test_links_that_were_not_built_are_asked_for_by_name():
    with pytest.raises(ValueError, match="retrieve_next_sibling was not built"):
        accept(replace(TWO_TREES, retrieve_next_sibling=None), torch.zeros(12))
