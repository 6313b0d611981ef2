import math
import random

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.select import Choice, best_candidates, selection

# root -> A .6, B .4; A -> C .42, E .12; B -> D .32, F .04; pool indices 0 to 5 in that order.
A, B, C, E, D, F = 101, 102, 103, 105, 104, 106
SCORES, TOKENS = [0.60, 0.40, 0.42, 0.12, 0.32, 0.04], [A, B, C, E, D, F]
PARENTS = [-1, 0, 1, 2, 4]  # beams of level 1 are A and B, of level 2 would be C and D


@pytest.mark.parametrize(
    ("count", "pool_index", "tokens", "parent_rows"),
    [
        (1, (0,), (A,), (-1, 0)),
        (2, (0, 2), (A, C), (-1, 0, 1)),
        (3, (0, 1, 2), (A, B, C), (-1, 0, 0, 1)),
        (4, (0, 1, 2, 4), (A, B, C, D), (-1, 0, 0, 1, 2)),  # rows root, A, B, C, D
        (5, (0, 1, 2, 3, 4), (A, B, C, E, D), (-1, 0, 0, 1, 1, 2)),
        (6, (0, 1, 2, 3, 4, 5), (A, B, C, E, D, F), (-1, 0, 0, 1, 1, 2, 2)),
        (0, (), (), (-1,)),
    ],
)
def test_the_scored_pool_is_selected_by_cumulative_score(
    count: int,
    pool_index: tuple[int, ...],
    tokens: tuple[int, ...],
    parent_rows: tuple[int, ...],
) -> None:
    choice = best_candidates(SCORES, count)
    rows = selection(choice.pool_index, TOKENS, PARENTS, topk=2)
    assert choice == Choice(pool_index, tied=())
    assert (rows.tokens, rows.parent_rows, rows.orphans) == (tokens, parent_rows, ())
    assert rows.tree(7) == CandidateTree((7, *tokens), parent_rows)


def test_single_step_scores_would_select_other_candidates() -> None:
    # The pool holds path products; the steps alone (.8 for D before .7 for C) rank differently.
    steps = [0.60, 0.40, 0.70, 0.20, 0.80, 0.10]
    assert best_candidates(steps, 2).pool_index == (2, 4)
    assert best_candidates(SCORES, 2).pool_index == (0, 2)


def test_both_index_spaces_of_the_recorded_trace() -> None:
    # SGLang's recorded trace: topk 4, four steps, eight rows; positions [5, 6, 6, 7, 7, 8, 8, 9].
    parents = [-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28]
    tokens = list(range(52))
    rows = selection((0, 1, 4, 8, 20, 24, 36), tokens, parents, topk=4)
    assert rows.parent_pool_index == (-1, -1, 0, 1, 4, 8, 20)
    assert rows.parent_rows == (-1, 0, 0, 1, 2, 3, 4, 5)
    assert [5 + depth for depth in rows.tree(99).depth] == [5, 6, 6, 7, 7, 8, 8, 9]


def test_the_recorded_trace_selects_its_recorded_candidates() -> None:
    scores = [0.71127, 0.28292, 0.0022995, 0.0017357]
    scores += [0.69142, 0.012863, 0.0016873, 0.0011871, 0.24787, 0.018818, 0.014204, 0.00092235]
    scores += [0.0022971, 1.67e-06, 1.8737e-07, 8.3146e-08]
    scores += [0.0012771, 0.00024374, 0.00017832, 1.1947e-05]
    scores += [
        0.66438,
        0.026997,
        2.4236e-05,
        4.0821e-06,
        0.24402,
        0.0028409,
        0.00050935,
        0.00029022,
    ]
    scores += [
        0.016178,
        0.0020567,
        0.00045892,
        3.0034e-05,
        0.013023,
        0.00050497,
        0.00036371,
        8.775e-05,
    ]
    scores += [0.6642, 0.00010525, 6.5864e-05, 1.2253e-06, 0.13019, 0.10461, 0.0052083, 0.0016777]
    scores += [0.020103, 0.0067335, 0.00012625, 1.0364e-05]
    scores += [0.015142, 0.00070819, 9.6595e-05, 8.7951e-05]
    assert best_candidates(scores, 7) == Choice((0, 1, 4, 8, 20, 24, 36), tied=())


def test_of_equal_scores_the_lower_pool_index_is_chosen_and_the_tie_is_reported() -> None:
    scores = [0.5, 0.5, 0.5, 0.0, 0.5, 0.0]
    assert best_candidates(scores, 2) == Choice((0, 1), tied=(2, 4))
    assert best_candidates(scores, 3) == Choice((0, 1, 2), tied=(4,))
    assert best_candidates(scores, 4) == Choice((0, 1, 2, 4), tied=())


def test_a_selection_without_its_ancestors_reports_each_orphan() -> None:
    # What torch's top-k chose from the same tied pool: two children without their parents.
    rows = selection((2, 4), TOKENS, PARENTS, topk=2)
    assert rows.parent_pool_index == (0, 1)
    assert rows.orphans == (1, 2)
    assert rows.parent_rows == (-1, -1, -1)
    with pytest.raises(
        ValueError, match=r"row 1 \(pool index 2\) is an orphan: its parent, pool inde"
    ):
        rows.tree(7)


def test_one_orphan_among_rooted_rows_is_found() -> None:
    rows = selection((0, 2, 4), TOKENS, PARENTS, topk=2)
    assert (rows.parent_rows, rows.orphans) == ((-1, 0, 1, -1), (3,))


def random_pool(seed: int, topk: int, steps: int) -> tuple[list[float], list[int]]:
    """A pool of path products with many ties: step probabilities are 1, 1/2 or 0."""
    rng = random.Random(seed)
    scores = [rng.choice([1.0, 0.5, 0.0]) for _ in range(topk)]
    parents, beams = [-1, *range(topk)], list(range(topk))
    for _ in range(steps - 1):
        base = len(scores)
        scores += [scores[s] * rng.choice([1.0, 0.5, 0.0]) for s in beams for _ in range(topk)]
        level = range(base, len(scores))
        beams = sorted(level, key=lambda s: (-scores[s], s))[:topk]
        parents += beams
    return scores, parents


def test_lower_index_first_never_orphans_a_node_and_higher_index_first_does() -> None:
    orphaned = 0
    for seed in range(200):
        topk, steps = 1 + seed % 4, 1 + seed % 5
        scores, parents = random_pool(seed, topk, steps)
        tokens = list(range(len(scores)))
        count = min(len(scores), 1 + seed % 9)
        chosen = best_candidates(scores, count).pool_index
        assert selection(chosen, tokens, parents, topk).orphans == ()
        other = sorted(sorted(tokens, key=lambda s: (-scores[s], -s))[:count])
        orphaned += bool(selection(other, tokens, parents, topk).orphans)
    assert orphaned > 20


def test_scores_without_an_order_and_pools_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores\[1\] is NaN"):
        best_candidates([0.5, math.nan], 1)
    with pytest.raises(ValueError, match="count is 3: accepted are 0 to 2, the pool's size"):
        best_candidates([0.5, 0.25], 3)


@pytest.mark.parametrize(
    ("pool_index", "parents", "message"),
    [
        ((0, 6), PARENTS, "row 2 is pool index 6: accepted are 0 to 5"),
        ((1, 0), PARENTS, "row 2 is pool index 0, after 1"),
        ((0, 0), PARENTS, "row 2 is pool index 0, after 0"),
        ((0, 2), [-1, 2, 1], r"parents\[1\] is 2, for pool index 2: accepted are 0 to 1"),
        ((0, 4), [-1, 0, -1], r"parents\[2\] is -1, for pool index 4: accepted are 0 to 3"),
    ],
)
def test_a_selection_that_is_no_forest_is_refused(
    pool_index: tuple[int, ...], parents: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        selection(pool_index, TOKENS, parents, topk=2)
