"""Drawn batches reach kernels of one width: cut to it, as trees, and no other backend sees that."""

import pytest

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.engine.levelled import Width, levelled
from treeproof.engine.settings import RunSettings
from treeproof.engine.supply import drawn_sources


def request(parents, rows, prefix=3, pad_rows=0):
    tree = CandidateTree(tuple(range(len(parents))), tuple(parents))
    return Request(tree=tree, row_of_node=tuple(rows), prefix_len=prefix, pad_rows=pad_rows)


BATCH = VerifyCase(
    requests=(
        request((-1, 0, 0, 1, 2), (0, 3, 1, 4, 2), pad_rows=2),
        request((-1, 0, 1), (0, 1, 2), prefix=0),
    ),
    shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=64),
)


def rows_of(case):
    return [(r.tree.parents, r.row_of_node, r.pad_rows) for r in case.requests]


def test_one_width_is_that_of_the_smallest_tree_and_rows_keep_their_order():
    cut = levelled(BATCH, Width(one=True))

    # Nodes 0, 1 and 2 lay in rows 0, 3 and 1.
    assert rows_of(cut) == [((-1, 0, 0), (0, 2, 1), 0), ((-1, 0, 1), (0, 1, 2), 0)]
    assert [r.prefix_len for r in cut.requests] == [3, 0]
    assert (cut.shape, cut.layout, cut.seed) == (BATCH.shape, BATCH.layout, BATCH.seed)


def test_the_most_rows_hold_for_each_request_with_its_padding():
    cut = levelled(BATCH, Width(most=4))

    assert rows_of(cut)[0] == ((-1, 0, 0, 1), (0, 2, 1, 3), 0)
    assert rows_of(cut)[1] == rows_of(BATCH)[1]
    assert rows_of(levelled(BATCH, Width(most=6)))[0][2] == 1


def test_padding_alone_may_go_and_whoever_takes_all_gets_the_case_itself():
    bare = levelled(BATCH, Width(padded=False))

    assert [r.pad_rows for r in bare.requests] == [0, 0]
    assert [r.tree for r in bare.requests] == [r.tree for r in BATCH.requests]
    assert levelled(BATCH, Width()) is BATCH


def single_steps(sources):
    """Cases of these without scripts, which go to all backends alike."""
    return [case for source in sources for case in source.draw() if not case.script]


@pytest.mark.parametrize(
    "able",
    [
        Capabilities(ragged=False, pad_rows=False, softcap=True, sinks=True, alibi=True),
        Capabilities(max_rows=8, softcap=True, sinks=True, alibi=True),
    ],
    ids=["one-width", "few-rows"],
)
def test_drawn_cases_are_cut_for_those_who_need_it_and_others_get_them_as_they_are(able):
    settings = RunSettings(backends=("any", "one"), seed=3, examples=24, store=None)
    wide = Capabilities(softcap=True, sinks=True, alibi=True)
    sources = drawn_sources(settings, {"any": wide, "one": able})
    as_drawn = single_steps(drawn_sources(settings, {"any": wide}))

    drawn = {
        name: single_steps(s for s in sources if s.backends == {name}) for name in ("any", "one")
    }
    assert drawn["any"] == as_drawn
    assert len(as_drawn) == 24
    refused = [able.refusal(case, "cpu") for case in drawn["one"]]
    assert {reason for reason in refused if reason} <= {
        "a cache in int8",
        "a cache in float8_e4m3fn",
    }
    assert any(len(c.requests) > 1 and not able.refusal(c, "cpu") for c in drawn["one"])
    # Without it nearly all of them would be refused.
    assert sum(able.refusal(case, "cpu") is None for case in as_drawn) < refused.count(None) / 2
