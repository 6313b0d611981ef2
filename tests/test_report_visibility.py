"""What rows must read and what they read, as a grid and as lists."""

from __future__ import annotations

import pytest

from treeproof.contract.case import Request
from treeproof.contract.tree import CandidateTree
from treeproof.properties.expected import expected_reads
from treeproof.reports.visibility import keys_in_words, ranges, visibility_lines


def request_of(parents: tuple[int, ...], prefix_len: int) -> Request:
    rows = tuple(range(len(parents)))
    tree = CandidateTree(tokens=rows, parents=parents)
    return Request(tree=tree, row_of_node=rows, prefix_len=prefix_len)


def test_runs_of_three_are_folded() -> None:
    assert ranges([9, 0, 1, 2, 3, 12, 13]) == "0-3 9 12 13"
    assert ranges([]) == ""


def test_the_grid_marks_what_differs() -> None:
    request = request_of((-1, 0, 0, 1, 2), 7)
    marks = {(2, 8): "+", (4, 9): "-", (4, 3): "-", (4, 4): "-", (4, 5): "-", (3, 7): "2"}
    assert visibility_lines(request, None, (2, 3, 4), marks) == [
        "          prefix       0 1 2 3 4",
        "row 2     all          • + • · ·",
        "row 3     all          2 • · • ·",
        "row 4     all  - 3-5   • · - · •",
    ]


def test_a_window_shows_as_the_prefix_that_is_left_and_hides_ancestors() -> None:
    chain = request_of((-1, 0, 1, 2), 3)
    assert visibility_lines(chain, 3, range(4)) == [
        "          prefix   0 1 2 3",
        "row 0     1-2      • · · ·",
        "row 1     2        • • · ·",
        "row 2     none     • • • ·",
        "row 3     none     · • • •",
    ]


def test_many_rows_become_lists() -> None:
    request = request_of((-1, *[(node - 1) // 2 for node in range(1, 70)]), 0)
    assert visibility_lines(request, None, (9,), {(9, 5): "+", (9, 1): "-"}) == [
        "          prefix  rows",
        "row 9     empty   • 0 1 4 9   + 5   - 1",
    ]


@pytest.mark.parametrize(
    ("prefix_len", "window", "words"),
    [
        (7, None, "prefix 0-6, rows 0 2 (9 keys)"),
        (7, 3, "prefix 6, rows 0 2 (3 keys)"),
        (0, None, "rows 0 2 (2 keys)"),
        (7, 1, "rows 2 (1 key)"),
    ],
)
def test_keys_in_words(prefix_len: int, window: int | None, words: str) -> None:
    read = expected_reads(request_of((-1, 0, 0), prefix_len), window)[2]
    assert keys_in_words(read) == words
