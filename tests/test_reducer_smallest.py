"""What the reducer calls smallest is held against a list of single removals made without it."""

from __future__ import annotations

import random
from functools import cache

import pytest
from reducible_faults import FAULTS, Fault, size_of
from single_removals import lacking_one
from test_engine_reducer import random_case

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.engine.reducer import reduce
from treeproof.generate.units import draw, units

LIMIT = 300
FAR = 4096
EACH = 10
"""Cases that each fault is reduced from."""


@cache
def near_cases() -> tuple[VerifyCase, ...]:
    drawn = [case for unit in units("quick", 3, 120) for case in draw(unit)]
    made = [random_case(seed, size=40, requests=3) for seed in range(20)]
    return tuple(random.Random(0).sample([*drawn, *made], len(drawn) + len(made)))


@cache
def far_cases() -> tuple[VerifyCase, ...]:
    """As the GPU profile draws them: prefixes from 4,096 to 32,768 keys."""
    drawn = [case for unit in units("gpu", 5, 360) for case in draw(unit)]
    return tuple(c for c in drawn if max(r.prefix_len for r in c.requests) >= FAR)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_nothing_single_can_be_left_out_of_a_smallest_case(fault: Fault) -> None:
    near = [case for case in near_cases() if fault.holds(case)][:EACH]
    far = [case for case in far_cases() if fault.holds(case)][:2]
    assert len(near) + len(far) >= 2, "too few cases show this fault"
    for case in near + far:
        reduction = reduce(case, fault.holds, LIMIT)
        assert fault.holds(reduction.case)
        left = [what for what, smaller in lacking_one(reduction.case) if fault.holds(smaller)]
        assert (left, reduction.complete) == ([], True), case.id
        assert size_of(reduction.case) in fault.smallest, case.id
        assert reduction.evaluations <= LIMIT


def test_there_are_enough_faults_and_far_cases_to_speak_of() -> None:
    assert len(FAULTS) >= 40
    assert len(far_cases()) >= 4
    assert max(r.prefix_len for case in far_cases() for r in case.requests) > 16_384


def test_the_list_of_single_removals_finds_each_thing_that_is_one_too_many() -> None:
    """The negative control of the test above: nothing is overlooked by what it is held against."""
    gone = {what.split(" of request")[0] for what, _ in lacking_one(rich_case())}
    assert {"request 0", "node 1", "1 keys of prefix", "a padded row", "a page"} <= gone
    assert {"16 keys of prefix", "a shared page", "half of every page"} <= gone
    assert {"heads down to 6 and 3", "heads down to 4 and 4", "heads down to 8 and 2"} <= gone


def rich_case() -> VerifyCase:
    request = Request(
        tree=CandidateTree((1, 2), (-1, 0)), row_of_node=(0, 1), prefix_len=48, pad_rows=1
    )
    return VerifyCase(
        requests=(request, request),
        shape=AttentionShape(num_q_heads=8, num_kv_heads=4, head_dim=32, v_head_dim=32),
        layout=KVLayout(page_size=16, num_slots=192, shared_prefix=32),
    )


def test_a_reduction_that_ends_at_the_limit_is_not_called_minimal() -> None:
    case = rich_case()
    whole = reduce(case, lambda case: True)
    assert whole.complete
    short = reduce(case, lambda case: True, limit=whole.evaluations - 1)
    assert (short.complete, short.evaluations) == (False, whole.evaluations - 1)
