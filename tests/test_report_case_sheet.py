"""A case drawn in full, and one row traced through the stages."""

from __future__ import annotations

import msgspec

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase, Window
from treeproof.contract.event import Checked
from treeproof.contract.failure import Cell, Failure, Identity, Recovered
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.contract.tree import CandidateTree
from treeproof.reports.case_sheet import case_lines
from treeproof.reports.trace import trace_lines

SHAPE = AttentionShape(
    num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64, visibility=Window(width=5)
)
CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(10, 11, 12, 13), parents=(-1, 0, 0, 1)),
            row_of_node=(0, 2, 1, 3),
            prefix_len=7,
            pad_rows=1,
        ),
    ),
    shape=SHAPE,
    layout=KVLayout(page_size=4, num_slots=16),
    seed=3,
)


def test_the_sheet_shows_tree_rows_layout_and_expected_keys() -> None:
    # Slots by hand: page 0 is the pad page, so column c of the contiguous layout is slot 4 + c.
    assert case_lines(CASE) == [
        f"case {CASE.id}: 1 request, 4 rows, prefix 7",
        "  attention  4 query and 2 key heads, head dim 64, values 64, float32, window of 5 keys",
        "  cache      4 pages of 4, contiguous, pad slot 0, table padded with 0",
        "  mask       FULL_MASK",
        "  data       seed 3",
        "",
        "request 0: prefix 7, 4 rows and 1 padded row",
        "  row 0 token 10",
        "  ├─ row 1 (node 2) token 12",
        "  └─ row 2 (node 1) token 11",
        "     └─ row 3 token 13",
        "",
        "  row  node  token  depth  position  parent row  children  slot",
        "    0     0     10      0         7           -       1 2    11",
        "    1     2     12      1         8           0              12",
        "    2     1     11      1         8           0         3    13",
        "    3     3     13      2         9           2              14",
        "  prefix slots  4-10",
        "",
        "  must read (•)",
        "            prefix   0 1 2 3",
        "  row 0     3-6      • · · ·",
        "  row 1     4-6      • • · ·",
        "  row 2     4-6      • · • ·",
        "  row 3     5-6      • · • •",
    ]


def test_a_large_case_says_what_it_leaves_out() -> None:
    rows = tuple(range(60))
    tree = CandidateTree(tokens=rows, parents=(-1, *[0] * 59))
    case = VerifyCase(
        requests=(Request(tree=tree, row_of_node=rows, prefix_len=1000),),
        shape=SHAPE,
        layout=KVLayout(page_size=1, num_slots=2048),
    )
    lines = case_lines(case)
    assert lines[-1] == "  … 20 more rows not listed"
    assert max(map(len, lines)) <= 100


def test_the_trace_of_a_row_follows_it_through_the_stages() -> None:
    assert trace_lines(CASE, 0, 3) == [
        f"request 0, row 3 (node 3, path 0→1→3) of case {CASE.id}",
        "  token       13",
        "  position    9 = prefix 7 + depth 2",
        "  keys        prefix 5-6, rows 0 2 3 (5 keys)",
        "  links       parent row 2, children none, siblings none",
        "  slot        14 = page 3, offset 2; logical column 10",
    ]


def test_a_row_of_a_script_is_traced_from_what_is_ready_when_its_round_begins() -> None:
    script = (Admit(request=0), Prefill(request=0), Round(turns=(Turn(request=0, accept=3),)))
    case = msgspec.structs.replace(CASE, script=script)
    assert trace_lines(case, 0, 3)[1:] == [
        "  token       what the round drafts for it",
        "  position    P + depth 2, P columns being ready of the request",
        "  keys        columns before P, rows 0 2 3; the last 5 of them",
        "  links       parent row 2, children none, siblings none",
        "  slot        that of logical column P + 3",
    ]
    assert trace_lines(case, 0, 0)[1] == "  token       last round’s bonus"
    failure = Failure(
        identity="kv", kind="path-not-compacted", evidence="measured", stage="commit", request=0,
        row=3, message=f"column 9 {'does not hold row 3 ' * 8}; seen in step 3 of the script",
    )  # fmt: skip
    lines = trace_lines(
        case, 0, 3, Checked(case=case.id, backend="b", cells=(), failures=(failure,))
    )
    assert max(map(len, lines)) <= 100
    assert "seen in step 3 of the script" in " ".join(" ".join(lines).split())


def test_a_backend_that_was_checked_stands_below_each_expectation() -> None:
    checked = Checked(
        case=CASE.id,
        backend="mine",
        cells=(
            Cell(identity="candidate", evidence="declared", status="pass", stage="build"),
            Cell(
                identity="kv",
                evidence="measured",
                status="not-checked",
                stage="commit",
                reason="reference",
            ),
        ),
        failures=(
            Failure(
                identity="position",
                kind="wrong-depth",
                evidence="declared",
                stage="build",
                request=0,
                row=3,
                message="is given position 10",
            ),
        ),
        recovered=(
            Recovered(
                identity="position", evidence="declared", what="depths", values=((0, 1, 1, 3),)
            ),
            Recovered(
                identity="visibility",
                evidence="measured",
                what="parents",
                values=((-1, 0, 0, None),),
            ),
        ),
    )
    lines = trace_lines(CASE, 0, 3, checked)
    assert lines[1] == "              expected; below it what mine showed"
    assert lines[2:4] == ["  token       13", "              declared, build: pass"]
    assert lines[4:7] == [
        "  position    9 = prefix 7 + depth 2",
        "              declared: depth 3",
        "              ✗ declared: is given position 10",
    ]
    assert "              measured: parent row not determined" in lines
    assert lines[-1] == "              measured, commit: not checked (reference)"


def test_a_trace_ends_with_what_failed_beside_the_identities_on_this_row_or_on_none() -> None:
    def failure(identity: Identity, row: int | None, message: str) -> Failure:
        return Failure(
            identity=identity, kind="any", evidence="measured", stage="attend",
            request=None if row is None else 0, row=row, message=message,
        )  # fmt: skip

    checked = Checked(
        case=CASE.id,
        backend="mine",
        cells=(),
        failures=(
            failure("output", 3, "row 3 is off"),
            failure("output", 2, "row 2 is off"),
            failure("contract", None, "attend raised\nKeyError"),
        ),
    )
    assert trace_lines(CASE, 0, 3, checked)[-2:] == [
        "  output      ✗ measured: row 3 is off",
        "  contract    ✗ measured: attend raised KeyError",
    ]
    assert not any("is off" in line for line in trace_lines(CASE, 0, 1, checked))
