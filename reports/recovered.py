"""The trees that the identities' evidence determined, side by side with the drawn one."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.case import Request
from treeproof.contract.failure import Recovered
from treeproof.reports.drawing import draw

MAX_ROWS = 10
"""Rows shown: whole trees up to so many rows, of larger ones the first rows that differ."""
_WORDS = {"parents": "parent row", "depths": "depth", "tokens": "token", "rows": "slot's row"}
_WIDTH = 96


def recovered_lines(request: Request, b: int, recovered: Sequence[Recovered]) -> list[str]:
    """What differs from the drawn tree, in columns beside it; then, in words, what does not."""
    differing, equal, unknown, partial = [], [], [], []
    for found in recovered:
        values = _values(found, b, request.num_nodes)
        name = f"{found.identity} ({found.witness})"
        pairs = [(v, d) for v, d in zip(values, _drawn(request, found.what), strict=True)]
        if all(v is None for v in values):
            unknown.append(name)
        elif any(v is not None and v != d for v, d in pairs):
            differing.append((found, values))
        else:
            equal.append(name)
            if missing := sum(v is None for v in values):
                partial.append(f"{missing} of {len(values)} rows in {name}")
    lines = _side_by_side(request, differing) if differing else []
    lines += _listed("recovered as drawn", equal)
    lines += _listed("not determined", [*unknown, *partial])
    return lines


def _listed(what: str, names: list[str]) -> list[str]:
    """The names, folded over as many lines as they need."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= _WIDTH:
            lines[-1] += f", {name}"
        else:
            lines.append(f"{what}: {name}")
    return lines


def _values(found: Recovered, b: int, rows: int) -> list[int | None]:
    """The recovered value of each real row; None past the end of what was recovered."""
    values = list(found.values[b]) if b < len(found.values) else []
    return (values + [None] * rows)[:rows]


def _drawn(request: Request, what: str) -> list[int]:
    tree, nodes = request.tree, request.node_of_row
    if what == "parents":
        return list(request.parent_rows)
    if what == "depths":
        return [tree.depth[node] for node in nodes]
    if what == "tokens":
        return [tree.tokens[node] for node in nodes]
    return list(range(request.num_nodes))


def _side_by_side(
    request: Request, differing: list[tuple[Recovered, list[int | None]]]
) -> list[str]:
    if request.num_nodes <= MAX_ROWS:
        columns = [("drawn tree", [line.text for line in draw(request.parent_rows)])]
        columns += [_column(request, *item) for item in differing]
    else:
        columns = _table(request, differing)
    height = max(len(body) for _, body in columns)
    lines = [""] * (height + 1)
    for head, body in columns:
        block = [head, *body, *[""] * (height - len(body))]
        width = max(map(len, block))
        if len(lines[0]) + width > _WIDTH:
            lines[0] += "…"
            break
        lines = [line + text.ljust(width + 3) for line, text in zip(lines, block, strict=True)]
    return [line.rstrip() for line in lines]


def _column(request: Request, found: Recovered, values: list[int | None]) -> tuple[str, list[str]]:
    """A recovered tree drawn; where the evidence gives no parents, its values row by row."""
    head = f"{found.identity} ({found.witness})"
    if found.what == "parents":
        return head, [line.text for line in draw(values)]
    drawn = _drawn(request, found.what)
    return head, [
        f"row {row} {_WORDS[found.what]} {_said(value, drawn[row])}"
        for row, value in enumerate(values)
    ]


def _said(value: int | None, drawn: int) -> str:
    if value is None:
        return "?"
    return str(value) if value == drawn else f"{value}, not {drawn}"


def _table(
    request: Request, differing: list[tuple[Recovered, list[int | None]]]
) -> list[tuple[str, list[str]]]:
    """The first rows on which something differs, one column a recovery."""
    drawn = [_drawn(request, found.what) for found, _ in differing]
    rows = [
        row
        for row in range(request.num_nodes)
        if any(v[row] not in (None, d[row]) for (_, v), d in zip(differing, drawn, strict=True))
    ]
    columns = [("", [f"row {row}" for row in rows[:MAX_ROWS]])]
    for (found, values), true in zip(differing, drawn, strict=True):
        head = f"{found.identity} ({found.witness}) {_WORDS[found.what]}"
        columns.append((head, [_said(values[row], true[row]) for row in rows[:MAX_ROWS]]))
    if more := rows[MAX_ROWS:]:
        columns[0][1].append(f"… {len(more)} more rows differ")
    return columns
