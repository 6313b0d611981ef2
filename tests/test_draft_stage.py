"""The layout of a drafting phase: known answers, what right ones may choose, what wrong ones are told."""

from dataclasses import replace

import pytest
import torch

from treeproof.backends.reference.draft import draft
from treeproof.contract.drafting import Drafted, columns_to_draft
from treeproof.contract.failure import PROBES
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.look import look
from treeproof.faults.catalog import FAULTS, named
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.generate.drafting import draft_scene

BRANCHED = (-1, 0, 0, 1)


def laid_out(prefix, topk, steps, page_size, requests=1):
    """The reference on prefixes whose columns are their slots."""
    tree = [-1, *[0] * topk, *([1] if steps > 1 else []), *range(topk + 1, topk + steps - 1)]
    made = case(*[request(tree, prefix)] * requests, page_size=page_size, layout={"pad_slot": -1})
    scene = draft_scene(made)
    caches = [part.clone() for part in scene.before]
    assert (scene.topk, scene.num_steps) == (topk, steps)
    assert all((own == own[0] + torch.arange(len(own)).numpy()).all() for own in scene.slots)
    return draft(scene.step(*caches)), caches, scene


def rows(table, ends):
    return [line[: end[-1]] for line, end in zip(table.tolist(), ends.tolist(), strict=True)]


def test_lists_of_two_branches_in_pages_of_four_are_those_of_sglang():
    d, _, _ = laid_out(prefix=6, topk=2, steps=3, page_size=4)

    assert d.kv_indptr.tolist() == [[0, 7, 14], [0, 8, 16], [0, 9, 18]]
    prefix = [0, 1, 2, 3, 4, 5]
    assert rows(d.kv_indices, d.kv_indptr) == [
        [*prefix, 6, *prefix, 14],
        [*prefix, 6, 7, *prefix, 14, 15],
        [*prefix, 6, 7, 8, *prefix, 14, 15, 16],
    ]
    assert d.out_cache_loc.tolist() == [[6, 14], [7, 15], [8, 16]]
    assert d.positions.tolist() == [[6, 6], [7, 7], [8, 8]]
    assert d.page_table[2].tolist() == [[0, 1, 2], [0, 3, 4]]
    assert d.cache_seqlens.tolist() == [[7, 7], [8, 8], [9, 9]]


def test_the_tail_of_a_page_of_64_is_copied_to_where_sglang_copies_it():
    _, caches, scene = laid_out(prefix=70, topk=2, steps=1, page_size=64)

    changed = {
        tuple((now != was).flatten(1).any(1).nonzero()[:, 0].tolist())
        for now, was in zip(caches, scene.before, strict=True)
    }
    assert changed == {(128, 129, 130, 131, 132, 133)}
    for now, was in zip(caches, scene.before, strict=True):
        assert torch.equal(now[128:134], was[64:70])


def test_in_pages_of_one_slot_branches_lie_one_after_another():
    d, _, _ = laid_out(prefix=2, topk=2, steps=2, page_size=1, requests=2)

    # Request 1 begins at slot 6; its branches are 8, 9 and 10, 11.
    assert d.out_cache_loc.T.tolist() == [[2, 3], [4, 5], [8, 9], [10, 11]]
    assert rows(d.kv_indices, d.kv_indptr)[1] == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 6, 7, 10, 11]


@pytest.mark.parametrize(
    ("prefix", "topk", "steps", "page", "columns"),
    [(7, 3, 2, 1, 13), (7, 1, 2, 4, 9), (7, 3, 2, 4, 28), (8, 3, 2, 4, 20), (0, 2, 1, 4, 8)],
)
def test_columns_that_a_request_holds_while_it_drafts(prefix, topk, steps, page, columns):
    assert columns_to_draft(prefix, topk, steps, page) == columns


SITUATIONS = [
    case(request(BRANCHED, 3), request((-1, 0), 6)),
    case(request(BRANCHED, 6), request((-1, 0), 3), page_size=4, layout={"order": "shuffled"}),
    case(request(BRANCHED, 8), request(FORK), page_size=4, layout={"pad_slot": -1}),
    case(request(BRANCHED, 5), request(FORK, 7), page_size=2, layout={"shared_prefix": 4}),
    case(request((-1, 0, 1, 2), 700), request(prefix=2), page_size=16, head_dims=(16, 16)),
]


@pytest.mark.parametrize("given", SITUATIONS)
def test_the_reference_lays_out_what_every_branch_must_read(given):
    checked = check_case(given, load("reference"), CheckOptions(probes=frozenset({"draft"})))

    assert checked.failures == ()
    judged = {(c.identity, c.evidence): c.status for c in checked.cells if c.stage == "draft"}
    tails = given.layout.page_size > 1 and any(r.prefix_len % given.layout.page_size for r in given.requests)  # fmt: skip
    several = max(r.tree.topk for r in given.requests) > 1
    assert judged == {
        ("position", "declared"): "pass",
        ("visibility", "declared"): "pass",
        ("kv", "declared"): "pass",
        ("kv", "measured"): "pass" if tails and several else "not-checked",
    }


def failures_of(around, given=SITUATIONS[1], probes=PROBES):
    """Of the reference with its stage wrapped."""
    options = CheckOptions(probes=frozenset(probes))
    return check_case(given, wrapped(load("reference"), "draft", around), options).failures


def kinds(around, given=SITUATIONS[1]):
    return {(f.identity, f.kind) for f in failures_of(around, given)}


def exchanged(right, step):
    """Branches change places: all that they write, and all that they read. In lists alone."""
    d, other = right(step), [1, 0, 3, 2]
    lists = [line.clone() for line in d.kv_indices]
    for line, ends in zip(lists, d.kv_indptr, strict=True):
        parts = line[: ends[-1]].split(ends.diff().tolist())
        line[: ends[-1]] = torch.cat([parts[j] for j in other])
    return Drafted(
        positions=d.positions,
        out_cache_loc=d.out_cache_loc[:, other],
        kv_indptr=d.kv_indptr,
        kv_indices=torch.stack(lists),
    )


def test_other_slots_of_the_request_are_as_good_as_long_as_they_are_read():
    assert kinds(exchanged, case(request(BRANCHED, 3), request(FORK, 6), page_size=4)) == set()


def test_lists_alone_need_no_copies():
    def lists_alone(right, step):
        own = replace(step, k_cache=step.k_cache.clone(), v_cache=step.v_cache.clone())
        d = right(own)
        return Drafted(
            out_cache_loc=d.out_cache_loc.int(),
            kv_indptr=d.kv_indptr.int(),
            kv_indices=d.kv_indices.int(),
        )

    backend = wrapped(load("reference"), "draft", lists_alone)
    checked = check_case(SITUATIONS[1], backend, CheckOptions(probes=frozenset({"draft"})))
    assert checked.failures == ()
    cells = [(c.identity, c.evidence, c.status) for c in checked.cells if c.stage == "draft"]
    assert cells == [
        ("kv", "declared", "pass"),
        ("visibility", "declared", "pass"),
        ("kv", "measured", "not-checked"),
    ]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"positions": torch.zeros(2, 3)}, ("contract", "wrong-shape")),
        ({"positions": [[0, 0, 0, 0]] * 2}, ("contract", "wrong-type")),
        ({"out_cache_loc": torch.zeros(2, 4)}, ("contract", "wrong-dtype")),
        ({"kv_indptr": None}, ("contract", "wrong-type")),
        ({"kv_indices": torch.tensor(3)}, ("contract", "wrong-shape")),
        ({"cache_seqlens": torch.full((2, 4), 10**9)}, ("contract", "malformed-table")),
        ({"cache_seqlens": torch.full((2, 4), -1)}, ("contract", "malformed-table")),
        ({"out_cache_loc": torch.full((2, 4), -7)}, ("kv", "wrong-draft-slot")),
        ({"out_cache_loc": torch.full((2, 4), 10**9)}, ("kv", "wrong-draft-slot")),
        ({"page_table": torch.full((2, 4, 9), 10**9)}, ("visibility", "reads-unowned")),
        ({"page_table": torch.full((2, 4, 9), -3)}, ("visibility", "misses-prefix")),
    ],
)
def test_whatever_is_handed_back_is_a_failure_of_the_stage_and_never_a_crash(fields, seen):
    failures = failures_of(lambda right, step: replace(right(step), **fields))

    assert seen in {f.key for f in failures}
    assert {f.stage for f in failures} == {"draft"}


def test_what_is_no_layout_at_all_and_what_raises_are_failures_of_the_contract():
    assert kinds(lambda right, step: right(step).positions) == {("contract", "wrong-type")}
    assert kinds(lambda right, step: step.nothing) == {("contract", "raises")}


def test_lengths_that_are_changed_and_slots_of_others_that_are_written_are_seen():
    def moves_on(right, step):
        d = right(step)
        step.seq_lens.add_(1)
        return d

    def writes_a_prefix_slot(right, step):
        d = right(step)
        step.v_cache[int(d.kv_indices[0, 0])] = 0.0
        return d

    assert kinds(moves_on) == {("contract", "mutates-input")}
    assert kinds(writes_a_prefix_slot) == {("kv", "written-elsewhere")}


def test_a_branch_is_told_what_it_reads_in_place_of_what():
    (transposed,) = named(("drafts-transposed",))
    backend = transposed.into(load("reference"))
    given = case(request(BRANCHED), request(BRANCHED))
    failures = check_case(given, backend, CheckOptions()).failures

    assert {f.probe for f in failures} == {"draft"}
    assert next(f.message for f in failures if f.kind == "reads-sibling") == (
        "step 1 of branch 0 of request 0 reads the key of step 0 of branch 1 of request 0, by its lists"
    )


# The first fault of each cause; the others where long tests are asked for.
FIRST = {f.cause: f.name for f in reversed(FAULTS) if f.stage == "draft" and not f.smallest.script}
EACH_CAUSE = [
    pytest.param(f, id=f.name, marks=[pytest.mark.long] * (FIRST[f.cause] != f.name))
    for f in FAULTS
    if f.stage == "draft" and not f.smallest.script
]


@pytest.mark.parametrize("fault", EACH_CAUSE)
def test_the_cause_of_a_wrong_layout_is_named(fault):
    found = look(fault.smallest, fault.into(load("reference")), CheckOptions())

    assert (found[0].cause, found[0].candidates) == (fault.cause, (fault.cause,))


def test_a_right_layout_in_other_slots_is_no_evidence_of_a_fault():
    """Another fault is not hidden behind what is only unlike ours."""
    given = case(request(BRANCHED, 3), request(FORK, 6), page_size=4)

    def boundary_moved(right, *arguments):
        done = right(*arguments)
        return replace(done, seq_lens=done.seq_lens + 1)

    backend = wrapped(wrapped(load("reference"), "draft", exchanged), "commit", boundary_moved)
    assert look(given, backend, CheckOptions())[0].cause == "boundary-off-by-one"


def test_no_other_probe_sees_a_wrong_layout():
    faults = named(
        ("draft-position-frozen", "draft-lengths-lag.lists", "draft-tail-not-copied.values")
    )
    for fault in faults:
        backend = fault.into(load("reference"))
        options = CheckOptions(probes=frozenset(PROBES) - {"draft"})
        assert check_case(fault.smallest, backend, options).failures == ()


def test_long_prefixes_are_laid_out_short_and_keep_their_place_in_the_page():
    scene = draft_scene(case(request((-1, 0), 9001), page_size=16, head_dims=(16, 16)))

    assert scene.prefix_lens == (633,)
    assert draft_scene(case(request(prefix=100))).prefix_lens == (100,)
