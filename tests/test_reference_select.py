"""Selection out of a draft pool: recorded scores, ties, orphans and what is refused."""

import pytest
import torch

from treeproof.backends.reference.select import orphans, select
from treeproof.contract.inputs import DraftPool, Selected

# Scores and tokens level by level, as recorded in SGLang's test (topk 4, 4 steps, 2 requests). The
# first line of each request is level 0; below it, four beams of four children a level.
SCORES = (
    """0.71127 0.28292 0.0022995 0.0017357
    0.69142 0.012863 0.0016873 0.0011871  0.24787 0.018818 0.014204 0.00092235
    0.0022971 1.67e-06 1.8737e-07 8.3146e-08  0.0012771 0.00024374 0.00017832 1.1947e-05
    0.66438 0.026997 2.4236e-05 4.0821e-06  0.24402 0.0028409 0.00050935 0.00029022
    0.016178 0.0020567 0.00045892 3.0034e-05  0.013023 0.00050497 0.00036371 8.775e-05
    0.6642 0.00010525 6.5864e-05 1.2253e-06  0.13019 0.10461 0.0052083 0.0016777
    0.020103 0.0067335 0.00012625 1.0364e-05  0.015142 0.00070819 9.6595e-05 8.7951e-05""",
    """0.97476 0.022219 0.00065031 0.00013212
    0.084832 0.066068 0.058304 0.057851  0.0023616 0.0011243 0.00054368 0.00027768
    0.00025286 0.00015578 2.8817e-05 1.2888e-05  0.00012834 2.5417e-06 1.1279e-06 1.6088e-08
    0.023263 0.020054 0.009399 0.0027783  0.064156 0.00055506 0.00010429 9.7211e-05
    0.04995 0.005063 0.00090068 0.00033656  0.0075817 0.00085731 0.00069972 0.00060793
    0.058608 0.001884 0.00078535 0.000444  0.012185 0.0020684 0.0017418 0.0014327
    0.0062455 0.0061487 0.0026862 0.0018034  0.001859 0.0016151 0.0012481 0.00036038""",
)
TOKENS = (
    """29896 29906 29900 29945
    29889 29974 29945 29900 29974 29922 29930 29958 29889 29974 29930 29945 29974 29922 29930 29958
    29946 29945 29953 29906 29896 29945 29900 29906 29896 29945 29906 29953 29896 29945 29906 29946
    29946 29974 29945 29930 29889 29922 29974 29930 29974 29946 29930 29922 29889 29974 29945 29922""",
    """13 2 29871 28956
    22550 4136 16492 8439 29871 2 3001 13 2 13 29906 29946 2 13 29871 259
    29871 2 29901 29889 29871 2 395 259 29901 29871 2 29889 3001 1234 7146 2186
    29941 29906 2 29946 29871 450 319 14990 29946 29941 2 29906 29871 2 3001 13""",
)
PARENTS = [
    [-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28, 36, 40, 41, 44],
    [-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 20, 21, 36, 40, 44, 45],
]


def pool(scores, topk, steps, parents=None, tokens=None):
    scores = torch.tensor([scores])
    tokens = torch.arange(scores.shape[1])[None] if tokens is None else torch.tensor([tokens])
    parents = torch.arange(-1, topk * steps)[None] if parents is None else torch.tensor([parents])
    return DraftPool(scores=scores, tokens=tokens, parents=parents, topk=topk, spec_steps=steps)


def test_the_recorded_pool_gives_the_recorded_selection():
    recorded = DraftPool(
        scores=torch.tensor([[float(s) for s in text.split()] for text in SCORES]),
        tokens=torch.tensor([[int(t) for t in text.split()] for text in TOKENS]),
        parents=torch.tensor(PARENTS),
        topk=4,
        spec_steps=4,
    )
    chosen = select(recorded, 8)
    assert chosen.selected_index.tolist() == [[0, 1, 4, 8, 20, 24, 36], [0, 4, 5, 6, 7, 24, 36]]
    assert chosen.parent_list.tolist() == [PARENTS[0][:13], PARENTS[1][:13]]
    assert chosen.draft_token.tolist() == [
        [29896, 29906, 29889, 29974, 29946, 29896, 29946],
        [13, 22550, 4136, 16492, 8439, 29871, 29941],
    ]
    assert orphans(chosen, 4) == ((), ())


def test_path_scores_select_and_not_single_probabilities():
    # root -> A 0.60, B 0.40; A -> C 0.70 (path 0.42), E 0.20 (0.12); B -> D 0.80 (0.32), F 0.10
    # (0.04). By path: A, C, B, D. By single-step probability D and C would come before B and A.
    scored = pool([0.60, 0.40, 0.42, 0.12, 0.32, 0.04], 2, 2, tokens=[10, 11, 12, 13, 14, 15])
    assert select(scored, 5).draft_token.tolist() == [[10, 11, 12, 14]]
    assert select(scored, 4).draft_token.tolist() == [[10, 11, 12]]
    assert select(scored, 3).draft_token.tolist() == [[10, 12]]
    # Both index spaces: pool index 4 (child of beam 1) is the fourth selected, hence row 4.
    assert select(scored, 5).selected_index.tolist() == [[0, 1, 2, 4]]
    assert select(scored, 5).parent_list.tolist() == [[-1, 0, 1]]


def test_among_equal_scores_the_lower_pool_index_wins():
    # The recorded tie: torch.topk picked {2, 4} here, leaving two orphans. Ours picks the parents.
    tied = pool([0.5, 0.5, 0.5, 0.0, 0.5, 0.0], 2, 2)
    chosen = select(tied, 3)
    assert chosen.selected_index.tolist() == [[0, 1]]
    assert orphans(chosen, 2) == ((),)


def test_the_recorded_orphans_are_named():
    recorded = Selected(
        parent_list=torch.tensor([[-1, 0, 1]]),
        selected_index=torch.tensor([[2, 4]]),
        draft_token=torch.tensor([[2, 4]]),
    )
    assert orphans(recorded, 2) == ((1, 2),)


def test_a_child_that_outscores_its_parent_is_selected_and_named_an_orphan():
    # Pool 4 hangs below pool 1, which scores lower and stays outside.
    chosen = select(pool([0.6, 0.2, 0.3, 0.0, 0.5, 0.0], 2, 2), 3)
    assert chosen.selected_index.tolist() == [[0, 4]]
    assert orphans(chosen, 2) == ((2,),)


def test_one_step_has_no_parent_list():
    chosen = select(pool([0.1, 0.6, 0.3], 3, 1), 3)
    assert chosen.selected_index.tolist() == [[1, 2]]
    assert chosen.parent_list.shape == (1, 0)


def test_a_chain_keeps_every_step():
    chosen = select(pool([0.9, 0.8, 0.7], 1, 3), 4)
    assert chosen.selected_index.tolist() == [[0, 1, 2]]
    assert chosen.parent_list.tolist() == [[-1, 0, 1]]


def test_a_root_alone_selects_nothing():
    assert select(pool([0.1, 0.6, 0.3], 3, 1), 1).selected_index.shape == (1, 0)


@pytest.mark.parametrize("rows", [0, 8])
def test_more_rows_than_candidates_are_refused(rows):
    with pytest.raises(ValueError, match=f"num_rows is {rows}: accepted are 1 to 7"):
        select(pool([0.6, 0.4, 0.4, 0.1, 0.3, 0.0], 2, 2), rows)


def test_a_score_that_is_no_number_is_refused_by_name():
    with pytest.raises(ValueError, match=r"scores\[0, 3\] is NaN"):
        select(pool([0.6, 0.4, 0.4, float("nan"), 0.3, 0.0], 2, 2), 3)
