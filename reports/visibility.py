"""What rows must read and what they were seen to read: a grid of keys, or lists where it is wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treeproof.contract.case import Request
from treeproof.properties.expected import Reads, expected_reads

SIGNS = {
    "•": "must read",
    "+": "reads but must not",
    "-": "must but does not",
    "2": "reads twice",
    "~": "heads disagree",
}
_LABEL = 10

Marks = Mapping[tuple[int, int], str]
"""(row, logical column) to one of `SIGNS`, the deviations from what must be read."""


def legend(marks: Marks) -> str:
    """What the signs in use mean."""
    used = {"•", *marks.values()}
    return "  ".join(f"{sign} {words}" for sign, words in SIGNS.items() if sign in used)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers ascending, runs of three and more folded: `0-6 9 12`."""
    parts: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    texts = []
    for first, last in parts:
        if last - first >= 2:
            texts.append(f"{first}-{last}")
        else:
            texts += [str(n) for n in range(first, last + 1)]
    return " ".join(texts)


def visibility_lines(
    request: Request,
    window: int | None,
    rows: Sequence[int],
    marks: Marks | None = None,
    width: int = 96,
) -> list[str]:
    """One line a row of `rows`: its prefix keys folded, then its row keys, with `marks` on them."""
    marks = marks or {}
    reads = expected_reads(request, window)
    prefix = [_prefix_cell(reads[row], row, marks) for row in rows]
    room = max([len(cell) for cell in prefix] + [len("prefix")]) + 2
    cell = len(str(request.num_nodes - 1)) + 1
    if _LABEL + room + cell * request.num_nodes <= width:
        head = "".join(f"{column:>{cell}}" for column in range(request.num_nodes))
        lines = [f"{'':{_LABEL}}{'prefix':<{room}}{head}"]
        bodies = ["".join(f"{c:>{cell}}" for c in _grid(request, reads[r], r, marks)) for r in rows]
    else:
        lines = [f"{'':{_LABEL}}{'prefix':<{room}}rows"]
        bodies = [_listed(request, reads[row], row, marks) for row in rows]
    for row, left, body in zip(rows, prefix, bodies, strict=True):
        lines.append(f"{f'row {row}':<{_LABEL}}{left:<{room}}{body}".rstrip())
    return lines


def keys_in_words(read: Reads) -> str:
    """`prefix 0-6, rows 0 2 (9 keys)`."""
    parts = []
    if read.first < read.prefix_len:
        parts.append(f"prefix {_span(read)}")
    parts.append(f"rows {ranges(read.rows)}")
    return f"{', '.join(parts)} ({read.count} {'key' if read.count == 1 else 'keys'})"


def _span(read: Reads) -> str:
    last = read.prefix_len - 1
    return str(last) if read.first == last else f"{read.first}-{last}"


def _prefix_cell(read: Reads, row: int, marks: Marks) -> str:
    if read.prefix_len == 0:
        due = "empty"
    elif read.first == read.prefix_len:
        due = "none"
    elif read.first == 0:
        due = "all"
    else:
        due = _span(read)
    for sign in "+-2~":
        wrong = [c for (r, c), m in marks.items() if (r, m) == (row, sign) and c < read.prefix_len]
        if wrong:
            text = ranges(wrong)
            due += f"  {sign} {text if len(text) < 24 else text[:21] + '…'}"
    return due


def _grid(request: Request, read: Reads, row: int, marks: Marks) -> list[str]:
    columns = range(read.prefix_len, read.prefix_len + request.num_nodes)
    return [marks.get((row, c), "•" if read.has(c) else "·") for c in columns]


def _listed(request: Request, read: Reads, row: int, marks: Marks) -> str:
    text = f"• {ranges(read.rows)}"
    for sign in "+-2~":
        wrong = [c - read.prefix_len for (r, c), m in marks.items() if (r, m) == (row, sign)]
        if rows := ranges(c for c in wrong if c >= 0):
            text += f"   {sign} {rows}"
    return text
