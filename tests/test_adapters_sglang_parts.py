"""SGLang's smaller parts in Triton's interpreter: recorded answers, its selection, its merge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hand_candidates import bits
from sglang_worker import INTERPRETED, Check, case_of, optional, request, worker

from treeproof.contract.case import KVLayout

pytestmark = optional

SELECT = "treeproof.backends.adapters.sglang_select:sglang-select"
DRAFT = "treeproof.backends.adapters.sglang_draft:sglang-draft"
MERGE = "treeproof.backends.adapters.sglang_merge:sglang-merge"
CHAIN = "treeproof.backends.adapters.sglang_chain:sglang-chain"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def checked() -> Iterator[Check]:
    with worker() as check:
        yield check


def test_functions_of_sglang_give_what_was_recorded_of_them() -> None:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "sglang_by_hand.py")],
        capture_output=True,
        text=True,
        env={**os.environ, **INTERPRETED, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    positions, index, child, sibling, tokens, masks = found["trace"]
    assert positions == [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]
    assert index == [[*range(8)], [*range(8, 16)]]
    assert child == [[1, 3, 4, 5, 6, 7, -1, -1], [1, 2, -1, 6, -1, -1, 7, -1]]
    assert sibling == [[-1, 2, *[-1] * 6], [-1, -1, 3, 4, 5, -1, -1, -1]]
    first = [29974, 29896, 29906, 29889, 29974, 29946, 29896, 29946]
    assert tokens == [*first, 13, 13, 22550, 4136, 16492, 8439, 29871, 29941]
    assert masks == [bits(1, 3, 5, 11, 21, 43, 85, 171), bits(1, 3, 7, 11, 19, 35, 75, 203)]
    # Two tokens equally likely, then certainty: beams of the later steps are first children.
    assert found["certain"] == [[[0.5, 0.5, *[0.5, 0.0] * 4]], [[-1, 0, 1], [2, 4], [6, 8]]]
    assert found["merged"] == [4.0, pytest.approx(4.0)]


def test_the_selection_of_sglang_is_right_but_for_equal_scores(checked: Check) -> None:
    # With one candidate a step there is only one chain to take, and the earlier part of it is taken.
    assert checked(SELECT, case_of(request([-1, 0, 1], 1))).failures == ()

    result = checked(SELECT, case_of(request([-1, 0, 0, 1], 1)))
    assert {(f.identity, f.kind, f.evidence) for f in result.failures} == {
        ("candidate", "orphaned-row", "declared")
    }
    # Scores that are equal on purpose, and those of a drafter that is nearly certain.
    pools = {f.message.partition("candidates, ")[2].partition(":")[0] for f in result.failures}
    assert pools == {"equal scores", "saturated probabilities"}


def test_the_drafting_layout_of_sglang_is_right_in_pages_of_one_and_of_four(checked: Check) -> None:
    branched, chain = request([-1, 0, 0, 1], 6), request([-1, 0], 3)
    for page_size in (1, 4):
        layout = KVLayout(page_size=page_size, num_slots=64, order="shuffled")
        result = checked(DRAFT, case_of(branched, chain, layout=layout))
        assert result.failures == ()
        judged = {(c.identity, c.evidence): c.status for c in result.cells if c.stage == "draft"}
        assert judged.pop(("kv", "measured")) == ("pass" if page_size > 1 else "not-checked")
        assert judged == dict.fromkeys(
            [("position", "declared"), ("kv", "declared"), ("visibility", "declared")], "pass"
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_merge_of_sglang_is_right_but_for_two_empty_parts(checked: Check, dtype: str) -> None:
    result = checked(MERGE, case_of(request([-1], 1), dtype=dtype))

    assert {(f.identity, f.kind) for f in result.failures} == {("output", "merged-nothing")}
    assert {f.message.partition(":")[0] for f in result.failures} == {
        "two empty parts", "two empty parts of zeros",
    }  # fmt: skip


def test_the_rejection_sampling_of_sglang_is_right_on_chains(checked: Check) -> None:
    result = checked(CHAIN, case_of(request([-1, 0, 1, 2], 1), request([-1, 0, 0, 1], 1)))
    assert result.failures == ()
    judged = [c.status for c in result.cells if c.stage == "sample"]
    assert judged == ["pass", "pass"]  # for given coins, and in law
