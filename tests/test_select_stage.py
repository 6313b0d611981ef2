"""The selection of rows out of a draft pool: what right ones give, and what wrong ones are told."""

from dataclasses import replace

import pytest
import torch

from treeproof.backends.reference.select import select
from treeproof.contract.backend import describe
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.inputs import Selected
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.selecting import pools


def request(*parents):
    tree = CandidateTree(tuple(range(20, 20 + len(parents))), parents)
    return Request(tree=tree, row_of_node=tuple(range(len(parents))), prefix_len=1)


CASE = VerifyCase(
    requests=(request(-1, 0, 0, 1), request(-1)),
    shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=16),
)


def checked(stage, options=None):
    backend = describe(stage, "mine", stages={"select"})
    return check_case(CASE, backend, options or CheckOptions())


def kinds(stage):
    result = checked(stage)
    (cell,) = [c for c in result.cells if (c.identity, c.stage) == ("candidate", "select")]
    assert (cell.status == "fail") == any(f.stage == "select" for f in result.failures)
    assert {f.identity for f in result.failures} <= {"candidate", "contract"}
    return {f.kind for f in result.failures}


def closed(pool, num_rows):
    """The best, of equal ones the earlier: written anew."""
    order = sorted(range(pool.scores.shape[1]), key=lambda s: (-float(pool.scores[0, s]), s))
    chosen = torch.tensor([sorted(order[: num_rows - 1])], dtype=torch.int64)
    width = pool.topk * (pool.spec_steps - 1) + 1
    return Selected(pool.parents[:, :width], chosen, pool.tokens[:, chosen[0]])


def later_of_equals(pool, num_rows):
    order = sorted(range(pool.scores.shape[1]), key=lambda s: (-float(pool.scores[0, s]), -s))
    chosen = torch.tensor([sorted(order[: num_rows - 1])], dtype=torch.int64)
    return replace(closed(pool, num_rows), selected_index=chosen, draft_token=pool.tokens[:, chosen[0]])  # fmt: skip


def not_the_best(pool, num_rows):
    chosen = torch.arange(pool.scores.shape[1])[None, -(num_rows - 1) :][:, : num_rows - 1]
    return replace(closed(pool, num_rows), selected_index=chosen)


def by_score(pool, num_rows):
    right = closed(pool, num_rows)
    return replace(right, selected_index=right.selected_index.flip(1))


def shifted_tokens(pool, num_rows):
    right = closed(pool, num_rows)
    return replace(right, draft_token=right.draft_token + 1)


def parents_one_on(pool, num_rows):
    right = closed(pool, num_rows)
    return replace(right, parent_list=right.parent_list.roll(1, dims=1))


def without_parents(pool, num_rows):
    return replace(closed(pool, num_rows), parent_list=pool.parents[:, :0])


def test_the_best_with_their_ancestors_are_right():
    assert kinds(closed) == set()


@pytest.mark.parametrize(
    ("stage", "seen"),
    [
        (later_of_equals, {"orphaned-row"}),
        (not_the_best, {"wrong-selection"}),
        (by_score, {"unordered-selection"}),
        (shifted_tokens, {"wrong-token"}),
        (parents_one_on, {"wrong-parent"}),
        (without_parents, {"wrong-parent"}),
    ],
)
def test_a_wrong_selection_is_told_what_is_wrong(stage, seen):
    assert kinds(stage) == seen


def test_an_orphan_is_named_with_the_parent_that_it_lost():
    first = checked(later_of_equals).failures[0]

    assert (first.identity, first.evidence, first.stage, first.probe) == (
        "candidate", "declared", "select", "declared",
    )  # fmt: skip
    assert (first.request, first.row) == (0, 1)
    assert first.message == (
        "row 1: selecting 2 candidates, equal scores: expected candidate 0, parent of 2, selected, "
        "got [2, 4]"
    )


def test_a_selection_that_changes_the_pool_or_gives_another_shape_breaks_its_contract():
    def spoils(pool, num_rows):
        right = closed(pool, num_rows)
        pool.scores.zero_()
        return right

    def one_more(pool, num_rows):
        return closed(pool, num_rows + 1)

    assert {(f.kind, f.stage) for f in checked(spoils).failures} == {("mutates-input", "select")}
    assert {(f.kind, f.stage) for f in checked(one_more).failures} == {("wrong-shape", "select")}


def test_the_certain_pool_is_what_its_words_say():
    first, certain, *_ = pools(CASE)

    assert (certain.num_rows, certain.pool.topk, certain.pool.spec_steps) == (3, 2, 2)
    assert certain.pool.scores.tolist() == [[0.5, 0.5, 0.5, 0.0, 0.5, 0.0]]
    assert certain.pool.parents.tolist() == [[-1, 0, 1, 2, 4]]
    assert first.num_rows == 4


def test_the_stage_of_the_reference_is_judged_in_its_own_row_alone():
    own = check_case(CASE, load("reference"), CheckOptions())
    assert [(c.identity, c.status) for c in own.cells if c.stage == "select"] == [
        ("candidate", "pass")
    ]
    assert not [c for c in checked(lambda pool, n: select(pool, n)).cells if c.stage == "select"]
