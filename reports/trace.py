"""One verify row followed through the stages: token, position, keys, links, slot.

Beside what the drawn tree says stands what a backend's check recovered, where one is given.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import IDENTITIES, Recovered
from treeproof.contract.ledger import SlotLedger
from treeproof.properties.expected import ancestor_rows, expected_reads
from treeproof.reports.visibility import keys_in_words, ranges


def trace_lines(
    case: VerifyCase, request: int, row: int, checked: Checked | None = None
) -> list[str]:
    """The trace of row `row` of request `request`, with the backend's side where it was checked."""
    drawn = _in_rounds(case, request, row) if case.script else _expected(case, request, row)
    node = case.requests[request].node_of_row[row]
    path = "→".join(map(str, case.requests[request].tree.path(node)))
    lines = [f"request {request}, row {row} (node {node}, path {path}) of case {case.id}"]
    if checked is None:
        return lines + [f"  {name:<10}  {text}" for name, text in drawn]
    lines.append(f"  {'':<10}  expected; below it what {checked.backend} showed")
    for name, text in drawn:
        lines.append(f"  {name:<10}  {text}")
        for said in _said(name, checked, request, row):
            lines += _folded(f"  {'':<10}  {said}")
    return lines + _beside(checked, request, row)


def _expected(case: VerifyCase, b: int, row: int) -> list[tuple[str, str]]:
    request, ledger = case.requests[b], SlotLedger.of(case)
    node = request.node_of_row[row]
    depth = request.tree.depth[node]
    slot = ledger.row_slots(b)[row]
    page = case.layout.page_size
    read = expected_reads(request, case.shape.window)[row]
    return [
        ("token", f"{request.tree.tokens[node]}{' (last round’s bonus)' if node == 0 else ''}"),
        ("position", f"{request.prefix_len + depth} = prefix {request.prefix_len} + depth {depth}"),
        ("keys", keys_in_words(read)),
        ("links", _links(request, row)),
        (
            "slot",
            f"{slot} = page {slot // page}, offset {slot % page}; "
            f"logical column {request.prefix_len + row}",
        ),
    ]


def _in_rounds(case: VerifyCase, b: int, row: int) -> list[tuple[str, str]]:
    """The same of every round of a script, P being what is ready of the request when it begins."""
    request, window = case.requests[b], case.shape.window
    depth = request.tree.depth[request.node_of_row[row]]
    path = ranges(ancestor_rows(request, row))
    return [
        ("token", "last round’s bonus" if depth == 0 else "what the round drafts for it"),
        ("position", f"P + depth {depth}, P columns being ready of the request"),
        (
            "keys",
            f"columns before P, rows {path}" + (f"; the last {window} of them" if window else ""),
        ),
        ("links", _links(request, row)),
        ("slot", f"that of logical column P + {row}"),
    ]


def _links(request: Request, row: int) -> str:
    node = request.node_of_row[row]
    parent = request.parent_rows[row]
    children = ranges(request.row_of_node[child] for child in request.tree.children(node))
    beside = [r for r, p in enumerate(request.parent_rows) if p == parent and r != row]
    siblings = ranges(beside if parent >= 0 else [])
    up = "no parent" if parent < 0 else f"parent row {parent}"
    return f"{up}, children {children or 'none'}, siblings {siblings or 'none'}"


_COLUMNS = {
    "token": ("candidate",),
    "position": ("position",),
    "keys": ("visibility",),
    "links": ("traversal",),
    "slot": ("kv",),
}
_WORDS = {"parents": "parent row", "depths": "depth", "tokens": "token", "rows": "row in this slot"}


def _said(name: str, checked: Checked, b: int, row: int) -> list[str]:
    """What the check holds about this row under these identities, else their verdicts."""
    lines = []
    for identity in _COLUMNS[name]:
        recovered = [r for r in checked.recovered if r.identity == identity]
        for found in recovered:
            lines.append(f"{found.witness}: {_WORDS[found.what]} {_value(found, b, row)}")
        for failure in checked.failures:
            if failure.identity == identity and (failure.request, failure.row) == (b, row):
                lines.append(f"✗ {failure.evidence}: {failure.message}")
        if not recovered:
            lines += verdicts(checked, identity)
    return lines


def _beside(checked: Checked, b: int, row: int) -> list[str]:
    """What failed in the columns beside the five identities: on this row, or on none in particular."""
    lines: list[str] = []
    for failure in checked.failures:
        here = failure.row is None or (failure.request, failure.row) == (b, row)
        if failure.identity not in IDENTITIES and here:
            lines += _folded(f"  {failure.identity:<10}  ✗ {failure.evidence}: {failure.message}")
    return lines


def _folded(line: str) -> list[str]:
    return textwrap.wrap(line, 100, subsequent_indent=" " * 16, max_lines=4)


def _value(found: Recovered, b: int, row: int) -> str:
    values: Sequence[int | None] = found.values[b] if b < len(found.values) else ()
    value = values[row] if row < len(values) else None
    if value is None:
        return "not determined"
    return "none" if value < 0 else str(value)


def verdicts(checked: Checked, identity: str) -> list[str]:
    """The verdicts of a check on one identity, in words, with why there is none."""
    return [
        f"{', '.join(filter(None, (cell.evidence, cell.stage)))}: {cell.status.replace('-', ' ')}"
        + (f" ({cell.reason})" if cell.reason else "")
        for cell in checked.cells
        if cell.identity == identity
    ]
