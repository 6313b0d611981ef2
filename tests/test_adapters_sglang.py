"""SGLang's own kernel in Triton's interpreter: right without a window, wrong with one on a tree.

These run where SGLang and Triton are installed:

    pip install --no-deps sglang==0.5.23
    pip install triton

Elsewhere they are skipped, saying so, unless TREEPROOF_REQUIRE_OPTIONAL=1 makes that an error.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interpreter_worker import interpreter

from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.event import Checked
from treeproof.contract.tree import CandidateTree

REFERENCE = "treeproof.backends.adapters.sglang_extend:sglang-extend"
MISSING = [name for name in ("sglang", "triton") if importlib.util.find_spec(name) is None]

HOW = (
    f"not installed: {', '.join(MISSING)} (pip install --no-deps sglang==0.5.23; "
    "pip install triton)"
)

pytestmark = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1", reason=HOW
)

Check = Callable[[VerifyCase], Checked]


@pytest.fixture(scope="module")
def checked() -> Iterator[Check]:
    assert not MISSING, HOW
    with interpreter() as check:
        yield lambda case: check(REFERENCE, case)


def request(parents: list[int], prefix: int, pad_rows: int = 0) -> Request:
    tree = CandidateTree(tokens=tuple(range(10, 10 + len(parents))), parents=tuple(parents))
    rows = tuple(range(len(parents)))
    return Request(tree=tree, row_of_node=rows, prefix_len=prefix, pad_rows=pad_rows)


def case_of(*requests: Request, window: int | None = None, **fields: Any) -> VerifyCase:
    """One key-value head of 16 lanes, FULL_MASK without prefix cells, unless said otherwise."""
    shape = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 16}
    shape |= {
        name: fields.pop(name) for name in [*fields] if name in AttentionShape.__struct_fields__
    }
    if window is not None:
        shape["visibility"] = Window(width=window)
    layout = fields.pop("layout", KVLayout(page_size=1, num_slots=64, order="shuffled"))
    mask = fields.pop("mask", MaskLayout(slack=5, fill_prefix=False))
    return VerifyCase(
        requests=requests, shape=AttentionShape(**shape), layout=layout, mask=mask, **fields
    )


FORK, CHAIN = [-1, 0, 0], [-1, 0, 1]
SIX = [-1, 0, 0, 1, 2, 1]


def statuses(result: Checked) -> dict[str, str]:
    return {c.identity: c.status for c in result.cells if c.evidence == "measured"}


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
    "odd-head-dims": case_of(request(SIX, 5), head_dim=80, v_head_dim=96, rotary=10_000.0),
    "two-tiles-of-rows": case_of(request([-1, *[0] * 33, *range(1, 34)], 3), layout=KVLayout(page_size=1, num_slots=128)),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSING.values(), ids=PASSING)
def test_without_a_window_the_kernel_of_sglang_is_right(checked: Check, case: VerifyCase) -> None:
    result = checked(case)

    assert result.failures == ()
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
    result = checked(case_of(request(parents, prefix), window=window))

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
    result = checked(case_of(request(parents, prefix), window=window))

    seen = [f for f in result.failures if f.identity == "visibility"]
    assert {f.kind for f in seen} == {kind}
    assert {(f.row, f.column) for f in seen} == lost
    assert statuses(result)["visibility"] == "fail"
    assert statuses(result)["output"] == "fail"
    assert statuses(result)["contract"] == "pass"


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
    result = checked(case)

    assert {(c.status, c.reason) for c in result.cells} == {("unsupported", reason)}
