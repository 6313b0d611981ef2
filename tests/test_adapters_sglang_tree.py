"""SGLang's tree builder, greedy verifier and commit in Triton's interpreter: right, and wrong when misused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_worker import Check, case_of, optional, request, statuses, worker

from treeproof.contract.case import KVLayout, MaskLayout, MaskMode, VerifyCase

pytestmark = optional

TREE = "treeproof.backends.adapters.sglang_tree:sglang-tree"
EXTEND = "treeproof.backends.adapters.sglang_extend:sglang-extend"
MISUSED = Path(__file__).with_name("sglang_misused.py")

TWO = case_of(
    request([-1, 0, 0, 1], 5), request([-1, 0, 1, 1], 2), mask=MaskLayout(slack=16)
)  # fmt: skip
"""Two requests whose trees and prefixes differ, and room in the mask for what a misuse writes."""


@pytest.fixture(scope="module")
def checked() -> Iterator[Check]:
    with worker() as check:
        yield check


LONG = pytest.mark.long
PASSING = {
    "two": TWO,
    "alone": case_of(request([-1], 3)),
    "tree-alone": case_of(
        request([-1, 0, 0, 2, 1], 7), request([-1, 0, 1, 2, 3], 0), request([-1, 0, 0, 0, 0], 1),
        mask=MaskLayout(mode=MaskMode.QLEN_ONLY, slack=3),
    ),
    # The two trees and prefixes of the trace that SGLang's own test records.
    "recorded": case_of(
        request([-1, 0, 0, 1, 2, 3, 4, 5], 5), request([-1, 0, 1, 1, 1, 1, 3, 6], 10)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[LONG] * (name == "recorded"))
        for name, case in PASSING.items()
    ],
)
def test_builder_verifier_and_commit_of_sglang_are_right(checked: Check, case: VerifyCase) -> None:
    result = checked(TREE, case)

    assert result.failures == ()
    declared = {"candidate", "position", "visibility", "traversal", "kv"}
    assert {n for n, s in statuses(result, "declared").items() if s == "pass"} == declared
    found = statuses(result)
    assert (found["traversal"], found["kv"], found["contract"]) == ("pass",) * 3


@pytest.mark.parametrize(
    ("name", "evidence", "identities"),
    [
        ("accept-links-swapped", "measured", {"traversal"}),
        # The same links are a second account of who sees whom.
        pytest.param("build-links-swapped", "declared", {"traversal", "visibility"}, marks=LONG),
        ("index-without-offset", "measured", {"traversal"}),
        ("commit-without-offset", "measured", {"kv"}),
        pytest.param("commit-without-root", "measured", {"kv"}, marks=LONG),
        # Positions and rows of the mask begin one further on, in the other request's cells at last.
        ("root-in-seq-lens", "declared", {"position", "visibility", "candidate"}),
        ("qlen-for-full", "declared", {"visibility"}),
        pytest.param("depth-one-short", "declared", {"position", "visibility"}, marks=LONG),
    ],
)
def test_a_wrong_argument_to_the_right_tree_kernel_is_killed(
    checked: Check, name: str, evidence: str, identities: set[str]
) -> None:
    result = checked(f"{MISUSED}:{name}", TWO)

    seen = {f.identity for f in result.failures if f.evidence == evidence}
    assert seen == identities
    assert {n for n, s in statuses(result, evidence).items() if s == "fail"} == identities


@pytest.mark.parametrize(
    "mode", [MaskMode.FULL_MASK, pytest.param(MaskMode.QLEN_ONLY, marks=LONG)], ids=["full", "tree"]
)
def test_the_buffers_of_the_cuda_kernels_are_right(checked: Check, mode: MaskMode) -> None:
    case = case_of(request([-1, 0, 0], 2), request([-1, 0, 1], 0), mask=MaskLayout(mode=mode))
    result = checked(f"{MISUSED}:cuda-buffers", case)

    assert result.failures == ()
    assert statuses(result, "declared")["visibility"] == "pass"


def test_an_index_without_the_batch_offset_spares_the_first_request(checked: Check) -> None:
    result = checked(f"{MISUSED}:index-without-offset", TWO)

    assert {(f.kind, f.request) for f in result.failures} == {("wrong-walk", 1), ("wrong-bonus", 1)}


def test_the_right_attention_passes_with_the_right_arguments(checked: Check) -> None:
    assert checked(EXTEND, TWO).failures == ()


@pytest.mark.parametrize(
    ("name", "identities"),
    [
        ("mask-indptr-shifted", {"visibility", "output", "contract"}),
        pytest.param("mask-of-tree-alone", {"visibility", "output"}, marks=LONG),
        ("root-in-prefix", {"visibility", "output", "contract"}),
    ],
)
def test_a_wrong_argument_to_the_right_attention_is_killed(
    checked: Check, name: str, identities: set[str]
) -> None:
    result = checked(f"{MISUSED}:{name}", TWO)

    assert {f.identity for f in result.failures} == identities
    assert statuses(result)["visibility"] == "fail"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(request([-1, 0], 1), request([-1], 1)), "ragged rows"),
        (case_of(request([-1, 0], 1, pad_rows=1)), "padded rows"),
        (
            case_of(request([-1, 0], 1), mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING)),
            "mask mode QLEN_ONLY_BITPACKING",
        ),
        (
            case_of(request([-1, 0], 1), layout=KVLayout(page_size=1, num_slots=8, pad_slot=-1)),
            "pad slot -1",
        ),
    ],
    ids=["ragged", "padded", "bit-packed", "slot-0-in-use"],
)
def test_what_the_builder_does_not_do_is_unsupported_and_not_sent(
    checked: Check, case: VerifyCase, reason: str
) -> None:
    result = checked(TREE, case)

    assert {(c.status, c.reason) for c in result.cells} == {("unsupported", reason)}
