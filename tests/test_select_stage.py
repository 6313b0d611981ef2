"""The selection of rows out of a draft pool: what right ones give, and what wrong ones are told."""

from dataclasses import replace

import pytest
import torch

from treeproof.backends.reference.select import select
from treeproof.contract.backend import describe
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.failure import PROBES
from treeproof.contract.inputs import Selected
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.look import look
from treeproof.faults.catalog import FAULTS, named
from treeproof.faults.smallest import case
from treeproof.faults.smallest import request as of_tree
from treeproof.generate.drafter import LAWS, drafted_pool, grown
from treeproof.properties.selecting import pools


def request(*parents):
    tree = CandidateTree(tuple(range(20, 20 + len(parents))), parents)
    return Request(tree=tree, row_of_node=tuple(range(len(parents))), prefix_len=1)


CASE = VerifyCase(
    requests=(request(-1, 0, 0, 1), request(-1)),
    shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=16),
)


DECLARED = CheckOptions(probes=frozenset({"declared"}))


def checked(stage, options=None):
    backend = describe(stage, "mine", stages={"select"})
    return check_case(CASE, backend, options or DECLARED)


def kinds(stage):
    result = checked(stage)
    (cell,) = [c for c in result.cells if (c.identity, c.stage) == ("candidate", "select")]
    assert (cell.status == "fail") == any(f.stage == "select" for f in result.failures)
    assert {f.identity for f in result.failures} <= {"candidate", "contract"}
    return {f.kind for f in result.failures}


def chosen_by(pool, num_rows, sign=1):
    """The best of each line, of equal ones the earlier (or the later): written anew."""
    order = [
        sorted(range(len(line)), key=lambda s, line=line: (-line[s], sign * s))
        for line in pool.scores.tolist()
    ]
    best = [sorted(line[: num_rows - 1]) for line in order]
    return torch.tensor(best, dtype=torch.int64).view(len(order), num_rows - 1)


def taking(pool, chosen):
    width = pool.topk * (pool.spec_steps - 1) + 1
    return Selected(pool.parents[:, :width], chosen, pool.tokens.gather(1, chosen))


def closed(pool, num_rows):
    return taking(pool, chosen_by(pool, num_rows))


def later_of_equals(pool, num_rows):
    return taking(pool, chosen_by(pool, num_rows, sign=-1))


def not_the_best(pool, num_rows):
    chosen = torch.arange(pool.scores.shape[1])[-(num_rows - 1) :][: num_rows - 1]
    return replace(closed(pool, num_rows), selected_index=chosen.expand(len(pool.scores), -1))


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


# --- drafters whose probabilities are extreme, NaN, and a vocabulary of their own --------------------


def test_a_pool_grows_as_the_tree_of_the_note_does():
    """A 0.6 with children 0.7 and 0.2, B 0.4 with children 0.8 and 0.1."""
    pool = grown(
        [torch.tensor([[0.6, 0.4]]), torch.tensor([[[0.7, 0.2], [0.8, 0.1]]])],
        [torch.tensor([[65, 66]]), torch.tensor([[[67, 69], [68, 70]]])],
    )

    assert pool.scores[0].tolist() == pytest.approx([0.6, 0.4, 0.42, 0.12, 0.32, 0.04])
    assert pool.tokens.tolist() == [[65, 66, 67, 69, 68, 70]]
    assert pool.parents.tolist() == [[-1, 0, 1, 2, 4]]
    assert select(pool, 5).selected_index.tolist() == [[0, 1, 2, 4]]


@pytest.mark.parametrize("law", LAWS)
def test_a_drawn_pool_is_one_that_a_drafter_could_have_left(law):
    pools_of = [drafted_pool(seed, law, 2, topk=3, steps=4) for seed in range(8)]
    tied = zero = 0
    for pool in pools_of:
        for scores, parents, tokens in zip(
            pool.scores.tolist(), pool.parents.tolist(), pool.tokens.tolist(), strict=True
        ):
            level = range(3)
            for step in range(1, 4):
                start = 3 + 9 * (step - 1)
                beams = parents[1 + 3 * (step - 1) : 1 + 3 * step]
                assert beams == sorted(level, key=lambda s: (-scores[s], s))[:3] or step == 1
                for r, above in enumerate(beams):
                    brood = range(start + 3 * r, start + 3 * r + 3)
                    assert all(0 <= scores[s] <= scores[above] for s in brood)
                    assert len({tokens[s] for s in brood}) == 3
                    tied += any(scores[s] == scores[above] > 0 for s in brood)
                level = range(start, start + 9)
            zero += scores.count(0.0)
    assert pools_of[0].scores.dtype == torch.float32
    assert (tied > 0) == (law in ("certain", "saturated"))
    assert (zero > 0) == (law in ("certain", "underflowing"))


def nan_first(pool, num_rows):
    """As top-k does: NaN counts as the largest."""
    scores = pool.scores.nan_to_num(nan=9.0)
    return closed(replace(pool, scores=scores), num_rows)


def with_nan(stage):
    options = CheckOptions(probes=frozenset({"malformed"}))
    return {f.key for f in checked(stage, options).failures}


def test_scores_that_are_nan_are_refused_or_kept_to_their_request():
    def refuses(pool, num_rows):
        if pool.scores.isnan().any():
            raise ValueError("no order")
        return closed(pool, num_rows)

    def stumbles(pool, num_rows):
        if pool.scores.isnan().any():
            raise KeyError("nan")
        return closed(pool, num_rows)

    def spills(pool, num_rows):
        return taking(pool, not_the_best(pool, num_rows).selected_index)

    def outside(pool, num_rows):
        right = nan_first(pool, num_rows)
        return replace(
            right, selected_index=right.selected_index + 10**6 * int(pool.scores.isnan().any())
        )

    assert with_nan(nan_first) == set()
    assert with_nan(refuses) == set()
    assert with_nan(stumbles) == {("contract", "malformed-raises")}
    assert with_nan(spills) == {("candidate", "wrong-selection")}
    assert with_nan(outside) == {("candidate", "wrong-selection")}
    assert check_case(CASE, load("reference"), CheckOptions()).failures == ()


def test_only_who_says_so_is_given_a_vocabulary_of_the_drafters_own():
    given = pools(CASE, mapped=True)[-1]
    assert given.pool.hot_token_id is not None
    assert [p.what for p in pools(CASE)] == [p.what for p in pools(CASE, mapped=True)][:-1]
    draft, target = given.pool.tokens, given.tokens
    assert not (draft == target).any()
    assert len(set(given.pool.hot_token_id.tolist())) == len(given.pool.hot_token_id)


# The first fault of each cause; the others where long tests are asked for.
FIRST = {f.cause: f.name for f in reversed(FAULTS) if f.stage == "select" and not f.smallest.script}
EACH_CAUSE = [
    pytest.param(f, id=f.name, marks=[pytest.mark.long] * (FIRST[f.cause] != f.name))
    for f in FAULTS
    if f.stage == "select" and not f.smallest.script
]


@pytest.mark.parametrize("fault", EACH_CAUSE)
def test_the_cause_of_a_wrong_selection_is_named(fault):
    found = look(fault.smallest, fault.into(load("reference")), CheckOptions())

    assert (found[0].cause, found[0].candidates) == (fault.cause, (fault.cause,))


# --- from pool to rows through both stages --------------------------------------------------------


def test_a_selection_that_its_own_build_reads_otherwise_is_seen_from_pool_to_row():
    (fault,) = named(("parents-as-if-dense",))
    backend = fault.into(load("reference"))
    failures = check_case(fault.smallest, backend, DECLARED).failures

    assert ("traversal", "unlinked-row") in {f.key for f in failures}
    assert all(f.message.startswith("out of its own selection: row 2 ") for f in failures)
    without = CheckOptions(probes=frozenset(PROBES) - {"declared"})
    assert check_case(fault.smallest, backend, without).failures == ()


def test_what_lies_between_two_stages_is_not_traced_where_one_is_not_its_own():
    (fault,) = named(("parents-as-if-dense",))
    reading = fault.into(load("reference"))
    alone = replace(reading, stages=frozenset({"build"}))

    assert check_case(fault.smallest, alone, CheckOptions()).failures == ()


def test_a_cache_without_room_for_the_rows_is_not_traced():
    """Of slots that lanes tell apart, and of the 32 columns of a packed mask, there are too few."""
    wide = case(*[of_tree((-1, *[0] * 8, 1, 9), 1)] * 4, page_size=16)
    packed = case(
        of_tree((-1, *[0] * 8, 1)), head_dims=(64, 64),
        mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING),
    )  # fmt: skip
    for given in (wide, packed):
        assert check_case(given, load("reference"), DECLARED).failures == ()
