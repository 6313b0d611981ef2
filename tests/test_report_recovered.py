"""Recovered trees beside the drawn one: what differs, what agrees, what is not determined."""

from __future__ import annotations

from treeproof.contract.case import Request
from treeproof.contract.failure import Recovered
from treeproof.contract.tree import CandidateTree
from treeproof.reports.recovered import recovered_lines


def request_of(parents: tuple[int, ...]) -> Request:
    rows = tuple(range(len(parents)))
    tree = CandidateTree(tokens=tuple(10 + row for row in rows), parents=parents)
    return Request(tree=tree, row_of_node=rows, prefix_len=0)


def found(what: str, *values: int | None, identity: str = "traversal") -> Recovered:
    return Recovered(identity=identity, evidence="declared", what=what, values=(values,))  # type: ignore[arg-type]


def test_what_is_recovered_as_drawn_is_only_named() -> None:
    lines = recovered_lines(request_of((-1, 0, 0)), 0, [found("parents", -1, 0, 0)])
    assert lines == ["recovered as drawn: traversal (declared)"]


def test_what_evidence_does_not_determine_is_never_filled_in() -> None:
    lines = recovered_lines(request_of((-1, 0, 1)), 0, [found("parents", -1, 0, None)])
    assert lines == [
        "recovered as drawn: traversal (declared)",
        "not determined: 1 of 3 rows in traversal (declared)",
    ]
    wrong = recovered_lines(request_of((-1, 0, 1)), 0, [found("parents", -1, 2, None)])
    assert wrong == [
        "drawn tree   traversal (declared)",
        "0            0",
        "└─ 1         1  (parent 2, not reached)",
        "   └─ 2      2  (parent not determined)",
    ]


def test_tokens_and_slots_are_listed_row_by_row() -> None:
    recovered = [
        found("tokens", 10, 12, 12, identity="candidate"),
        found("rows", 0, 2, 1, identity="kv"),
    ]
    assert recovered_lines(request_of((-1, 0, 0)), 0, recovered) == [
        "drawn tree   candidate (declared)     kv (declared)",
        "0            row 0 token 10           row 0 slot's row 0",
        "├─ 1         row 1 token 12, not 11   row 1 slot's row 2, not 1",
        "└─ 2         row 2 token 12           row 2 slot's row 1, not 2",
    ]


def test_a_list_too_short_for_the_request_is_not_determined_there() -> None:
    assert recovered_lines(request_of((-1, 0, 0)), 1, [found("parents", -1, 0, 0)]) == [
        "not determined: traversal (declared)"
    ]


def test_of_a_large_tree_only_rows_that_differ_are_listed() -> None:
    star = request_of((-1, *[0] * 40))
    values = [-1, *[0] * 40]
    values[7], values[30] = 6, 29
    assert recovered_lines(star, 0, [found("parents", *values)]) == [
        "         traversal (declared) parent row",
        "row 7    6, not 0",
        "row 30   29, not 0",
    ]
