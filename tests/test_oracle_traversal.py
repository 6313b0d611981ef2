from collections.abc import Sequence
from itertools import pairwise

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.traversal import Walk, greedy_walk

# The eight rows of SGLang's recorded build trace (positions [5, 6, 6, 7, 7, 8, 8, 9]) and its links.
EIGHT = CandidateTree(
    tokens=(29974, 29896, 29906, 29889, 29974, 29946, 29896, 29946),
    parents=(-1, 0, 0, 1, 2, 3, 4, 5),
)
NEXT_TOKEN = [1, 3, 4, 5, 6, 7, -1, -1]
NEXT_SIBLING = [-1, 2, -1, -1, -1, -1, -1, -1]


def predictions_along(tree: CandidateTree, path: Sequence[int], bonus: int) -> list[int]:
    """Each node of the path predicts the next one, its last the bonus, all others nothing drawn."""
    predicted = [31_999] * len(tree)
    for node, child in pairwise(path):
        predicted[node] = tree.tokens[child]
    predicted[path[-1]] = bonus
    return predicted


def walk_links(tokens: Sequence[int], predicted: Sequence[int], max_len: int) -> Walk:
    """The walk as engines do it: first child, then next siblings, until a token matches."""
    nodes, emitted, row = [0], [predicted[0]], 0
    while len(nodes) < max_len:
        row = NEXT_TOKEN[row]
        while row != -1 and tokens[row] != emitted[-1]:
            row = NEXT_SIBLING[row]
        if row == -1:
            break
        nodes.append(row)
        emitted.append(predicted[row])
    return Walk(tuple(nodes), tuple(emitted))


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ((0, 1, 3, 5, 7), (29896, 29889, 29946, 29946, 77)),
        ((0, 2, 4, 6), (29906, 29974, 29896, 77)),
        ((0, 2), (29906, 77)),
        ((0,), (77,)),
    ],
)
def test_the_eight_row_tree_is_walked_along_its_predictions(
    path: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    assert greedy_walk(EIGHT, predictions_along(EIGHT, path, 77), 5) == Walk(path, tokens)


def test_the_eight_row_tree_and_its_links_emit_the_same_tokens() -> None:
    for node in range(8):
        for max_len in range(1, 6):
            predicted = predictions_along(EIGHT, EIGHT.path(node), 77)
            expected = walk_links(EIGHT.tokens, predicted, max_len)
            assert greedy_walk(EIGHT, predicted, max_len) == expected


@pytest.mark.parametrize(
    ("parents", "tokens", "predicted", "walk"),
    [  # SGLang's greedy verification tests: two trees and a chain, accept_index 4 wide
        (
            (-1, 0, 1, 0, 3, 4),
            (0, 1, 2, 3, 4, 5),
            [3, 18, 18, 4, 5, 18],
            Walk((0, 3, 4, 5), (3, 4, 5, 18)),
        ),
        (
            (-1, 0, 1, 2, 0, 4),
            (7, 8, 9, 10, 11, 12),
            [11, 18, 18, 18, 12, 18],
            Walk((0, 4, 5), (11, 12, 18)),
        ),
        ((-1, 0, 1, 2), (10, 3, 4, 5), [3, 4, 9, 9], Walk((0, 1, 2), (3, 4, 9))),
    ],
)
def test_recorded_greedy_verifications_are_reproduced(
    parents: tuple[int, ...], tokens: tuple[int, ...], predicted: list[int], walk: Walk
) -> None:
    assert greedy_walk(CandidateTree(tokens, parents), predicted, 4) == walk


def test_three_accepted_drafts_emit_themselves_and_the_bonus() -> None:
    # Rows R, D1, D2, D3 predict D1, D2, D3, B: inputs and outputs are shifted by one token.
    r, d1, d2, d3, b = 50, 51, 52, 53, 54
    chain = CandidateTree((r, d1, d2, d3), (-1, 0, 1, 2))
    walk = greedy_walk(chain, [d1, d2, d3, b], 4)
    assert walk == Walk(nodes=(0, 1, 2, 3), tokens=(d1, d2, d3, b))


def test_max_len_ends_the_walk_with_the_last_accepted_node_s_prediction() -> None:
    chain = CandidateTree((50, 51, 52, 53), (-1, 0, 1, 2))
    assert greedy_walk(chain, [51, 52, 53, 54], 2) == Walk((0, 1), (51, 52))
    assert greedy_walk(chain, [51, 52, 53, 54], 1) == Walk((0,), (51,))


def test_a_matching_token_elsewhere_in_the_tree_is_not_followed() -> None:
    # Token 8 hangs below node 1; the root predicts it, but only children of the root count.
    tree = CandidateTree((5, 6, 7, 8, 8), (-1, 0, 0, 1, 2))
    assert greedy_walk(tree, [8, 8, 8, 8, 8], 3).nodes == (0,)
    assert greedy_walk(tree, [7, 8, 8, 9, 9], 3).nodes == (0, 2, 4)  # the cousin's 8, not node 3


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="prediction_of_node has 7 entries for a tree of 8 nodes"):
        greedy_walk(EIGHT, [0] * 7, 4)
    with pytest.raises(ValueError, match="max_len is 0: accepted are 1 and more"):
        greedy_walk(EIGHT, [0] * 8, 0)
