"""SGLang's own attention in Triton's interpreter: right without a window, wrong with one on a tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sglang_worker import Check, case_of, optional, request, statuses, worker

from treeproof.contract.case import KVLayout, MaskLayout, MaskMode, Request, VerifyCase

pytestmark = optional

EXTEND = "treeproof.backends.adapters.sglang_extend:sglang-extend"
UNIFIED = "treeproof.backends.adapters.sglang_unified:sglang-unified"


@pytest.fixture(scope="module")
def checked() -> Iterator[Check]:
    with worker() as check:
        yield check


FORK, CHAIN = [-1, 0, 0], [-1, 0, 1]
SIX = [-1, 0, 0, 1, 2, 1]


PASSING = {
    "fork": case_of(request(FORK, 1)),
    "no-prefix": case_of(request(SIX, 0)),
    "float16-sharp": case_of(request(SIX, 33), dtype="float16", score_spread=8.0),
    "ragged-batch": case_of(
        request(SIX, 21, pad_rows=3), request(FORK, 0), request([-1], 9), num_kv_heads=2
    ),
    "pages-of-sixteen": case_of(
        request(SIX, 30), layout=KVLayout(page_size=16, num_slots=96, order="reversed")
    ),
    "one-layer-of-many": case_of(
        request(SIX, 9), layout=KVLayout(page_size=1, num_slots=64, storage="layered")
    ),
    "odd-head-dims": case_of(request(SIX, 5), head_dim=80, v_head_dim=96, rotary=10_000.0),
    "two-tiles-of-rows": case_of(request([-1, *[0] * 33, *range(1, 34)], 3), layout=KVLayout(page_size=1, num_slots=128)),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSING.values(), ids=PASSING)
def test_without_a_window_the_kernel_of_sglang_is_right(checked: Check, case: VerifyCase) -> None:
    result = checked(EXTEND, case)

    assert result.failures == ()
    assert [(k.name, k.mode) for k in result.kernels] == [("_fwd_kernel", "interpreted")]
    found = statuses(result)
    assert (found["visibility"], found["output"], found["contract"]) == ("pass",) * 3


@pytest.mark.parametrize(
    ("parents", "prefix", "window"),
    [(CHAIN, 1, 2), ([-1, 0, 1, 2, 3], 12, 4)],
    ids=["three-rows", "prefix-cut"],
)
def test_with_a_window_a_chain_is_right(
    checked: Check, parents: list[int], prefix: int, window: int
) -> None:
    result = checked(EXTEND, case_of(request(parents, prefix), window=window))

    assert result.failures == ()
    assert statuses(result)["visibility"] == "pass"


@pytest.mark.parametrize(
    ("parents", "prefix", "window", "kind", "lost"),
    [
        # Row 2 has depth 1 and reads root and itself; two rows down the root is out of reach.
        (FORK, 1, 2, "misses-ancestor", {(2, 1)}),
        # Logical index 5, three keys: prefix key 3, root, itself. By row it starts at key 4.
        (FORK, 4, 3, "misses-prefix", {(2, 3)}),
        # Rows 2 to 5 lie 1, 1, 2 and 3 below their depth, and lose as many of their oldest keys.
        (SIX, 21, 9, "misses-prefix", {(2, 14), (3, 15), (4, 15), (4, 16), (5, 15), (5, 16), (5, 17)}),
    ],
    ids=["root-lost", "prefix-key-lost", "more-lost-further-down"],
)  # fmt: skip
def test_with_a_window_a_branching_tree_loses_keys_by_row_instead_of_depth(
    checked: Check,
    parents: list[int],
    prefix: int,
    window: int,
    kind: str,
    lost: set[tuple[int, int]],
) -> None:
    result = checked(EXTEND, case_of(request(parents, prefix), window=window))

    seen = [f for f in result.failures if f.identity == "visibility"]
    assert {f.kind for f in seen} == {kind}
    assert {(f.row, f.column) for f in seen} == lost
    assert statuses(result)["visibility"] == "fail"
    assert statuses(result)["output"] == "fail"
    assert statuses(result)["contract"] == "pass"


FILLED = MaskLayout(slack=5)
UNIFIED_PASSING = {
    "ragged-batch": case_of(
        request(SIX, 21, pad_rows=3), request(FORK, 0), request([-1], 9), num_kv_heads=2,
        mask=FILLED,
    ),
    "pages-of-sixteen": case_of(
        request(SIX, 30), mask=FILLED,
        layout=KVLayout(page_size=16, num_slots=96, order="reversed"),
    ),
    "chain-inside-its-window": case_of(request(CHAIN, 2), window=3, mask=FILLED),
}  # fmt: skip


@pytest.mark.parametrize("case", UNIFIED_PASSING.values(), ids=UNIFIED_PASSING)
def test_with_nothing_cut_off_the_unified_kernel_is_right(checked: Check, case: VerifyCase) -> None:
    result = checked(UNIFIED, case)

    assert result.failures == ()
    assert [(k.name, k.mode) for k in result.kernels] == [("_fwd_kernel_unified", "interpreted")]
    found = statuses(result)
    assert (found["visibility"], found["output"], found["contract"]) == ("pass",) * 3


def test_where_a_prefix_exceeds_the_window_the_unified_kernel_is_wrong_for_a_chain_too(
    checked: Check,
) -> None:
    result = checked(UNIFIED, case_of(request([-1, 0], 2), window=2, mask=FILLED))

    # The list holds prefix key 1 and both rows. Of the mask's 1110 1111, read three cells a row, the
    # root gets 111 and row 1 gets 011, which happens to be right.
    seen = {(f.row, f.column, f.kind) for f in result.failures if f.identity == "visibility"}
    assert seen == {(0, 3, "reads-descendant")}


def test_the_unified_kernel_measures_the_window_by_rows_as_well(checked: Check) -> None:
    result = checked(UNIFIED, case_of(request(FORK, 1), window=2, mask=FILLED))

    seen = {(f.row, f.column, f.kind) for f in result.failures if f.identity == "visibility"}
    assert seen == {(2, 1, "misses-ancestor")}


def test_the_unified_kernel_is_not_sent_a_mask_whose_prefix_cells_are_left_as_they_are(
    checked: Check,
) -> None:
    result = checked(UNIFIED, case_of(request(FORK, 1)))

    reason = "a mask whose prefix cells are not filled"
    assert {(c.status, c.reason) for c in result.cells} == {("unsupported", reason)}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(request(FORK, 1), window=1), "a sliding window of 1 keys"),
        (case_of(request(FORK, 1), dtype="bfloat16"), "dtype bfloat16"),
        (case_of(request(FORK, 1), mask=MaskLayout(mode=MaskMode.QLEN_ONLY)), "mask mode QLEN_ONLY"),
        (case_of(Request(tree=request(CHAIN, 1).tree, row_of_node=(0, 2, 1), prefix_len=1)), "rows that are not parent-first"),
        (case_of(request(FORK, 1), head_dim=24, v_head_dim=24), "head dims 24 and 24"),
    ],
    ids=["window-of-one", "bfloat16-interpreted", "other-mask", "child-first", "head-dim"],
)  # fmt: skip
def test_what_the_kernel_does_not_do_is_unsupported_and_not_sent(
    checked: Check, case: VerifyCase, reason: str
) -> None:
    result = checked(EXTEND, case)

    assert {(c.status, c.reason) for c in result.cells} == {("unsupported", reason)}
