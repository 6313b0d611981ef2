"""Trees as text: exact drawings, folding, the marked edge, ASCII."""

from __future__ import annotations

import re

from treeproof.contract.case import Request
from treeproof.contract.tree import CandidateTree
from treeproof.reports.drawing import bracket, draw, draw_request, plain

FIVE_ROWS = (-1, 0, 0, 1, 2)


def request_of(
    parents: tuple[int, ...], row_of_node: tuple[int, ...] | None = None, prefix_len: int = 7
) -> Request:
    rows = range(len(parents))
    return Request(
        tree=CandidateTree(tokens=tuple(10 + node for node in rows), parents=parents),
        row_of_node=row_of_node or tuple(rows),
        prefix_len=prefix_len,
    )


def texts(request: Request, **options: object) -> list[str]:
    return [line.text for line in draw_request(request, **options)]  # type: ignore[arg-type]


def test_a_tree_is_drawn_in_row_order_with_tokens() -> None:
    assert texts(request_of(FIVE_ROWS)) == [
        "row 0 token 10",
        "├─ row 1 token 11",
        "│  └─ row 3 token 13",
        "└─ row 2 token 12",
        "   └─ row 4 token 14",
    ]


def test_a_node_is_named_where_its_number_is_not_its_row() -> None:
    drawn = texts(request_of((-1, 0, 0), row_of_node=(0, 2, 1)))
    assert drawn == ["row 0 token 10", "├─ row 1 (node 2) token 12", "└─ row 2 (node 1) token 11"]


def test_the_offending_edge_runs_from_the_reader_to_what_it_reads() -> None:
    lines = draw_request(request_of(FIVE_ROWS))
    assert bracket(lines, reader=2, read=1, words=("must not be read", "row 2 reads it")) == [
        "row 0 token 10",
        "├─ row 1 token 11 ◄────┐  must not be read",
        "│  └─ row 3 token 13   │",
        "└─ row 2 token 12 ─────┘  row 2 reads it",
        "   └─ row 4 token 14",
    ]


def test_an_edge_upwards_and_an_edge_to_itself_are_drawn_too() -> None:
    lines = draw_request(request_of((-1, 0, 0)))
    assert bracket(lines, reader=1, read=2, words=("read", "reader"))[1:] == [
        "├─ row 1 token 11 ──┐  reader",
        "└─ row 2 token 12 ◄─┘  read",
    ]
    assert bracket(lines, reader=1, read=1, words=("", "here"))[1] == "├─ row 1 token 11  ◄── here"


def test_ascii_has_the_same_width_and_no_other_character() -> None:
    lines = bracket(draw_request(request_of(FIVE_ROWS)), 2, 1, ("a", "b"))
    assert [plain(line) for line in lines] == [
        "row 0 token 10",
        "|- row 1 token 11 <----+  a",
        "|  `- row 3 token 13   |",
        "`- row 2 token 12 -----+  b",
        "   `- row 4 token 14",
    ]
    assert plain("path 0→2 ≤ 数") == "path 0->2 <= ?"


def test_a_wide_tree_is_folded_around_the_rows_that_matter() -> None:
    star = request_of((-1, *[0] * 200))
    drawn = texts(star, keep=(150, 7), max_lines=8)
    assert drawn == [
        "row 0 token 10",
        "├─ row 1 token 11",
        "├─ row 7 token 17",
        "├─ row 150 token 160",
        "└─ … 197 more below row 0",
    ]


def test_a_long_way_down_becomes_one_line() -> None:
    chain = request_of((-1, *range(63)))
    assert texts(chain, keep=(40, 60)) == [
        "row 0 token 10",
        "⋮  39 rows in one line down, rows 1 … 39",
        "└─ row 40 token 50",
        "   ⋮  19 rows in one line down, rows 41 … 59",
        "   └─ row 60 token 70",
        "      └─ … 3 more below row 60",
    ]


def test_every_row_of_a_folded_tree_is_drawn_or_counted() -> None:
    comb: list[int] = [-1]
    spine = 0
    for _ in range(40):
        comb += [spine, spine]
        spine = len(comb) - 1
    lines = draw_request(request_of(tuple(comb)), keep=(79, 66), max_lines=30)
    drawn = sum(line.row is not None for line in lines)
    folded = " ".join(line.text for line in lines if line.row is None)
    counted = sum(map(int, re.findall(r"(\d+) (?:more|rows in one line)", folded)))
    assert drawn + counted == 81
    assert len(lines) <= 30
    assert max(len(line.text) for line in lines) <= 100


def test_four_thousand_rows_in_a_chain_are_no_recursion() -> None:
    lines = texts(request_of((-1, *range(4000))))
    assert lines[-1].endswith("… 3984 more below row 16")
    assert len(lines) == 4


def test_rows_that_the_root_does_not_reach_are_listed_after_the_tree() -> None:
    assert [line.text for line in draw([-1, 0, None, 4, 3, 9])] == [
        "0",
        "└─ 1",
        "2  (parent not determined)",
        "3  (parent 4, not reached)",
        "4  (parent 3, not reached)",
        "5  (parent 9, not reached)",
    ]
