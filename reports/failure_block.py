"""One distinct failure, explained in at most 40 lines: sentence, tree, keys, recoveries, replay."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from rich.text import Text

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked, Diagnosed, Sanitized
from treeproof.contract.failure import Failure
from treeproof.properties.expected import expected_reads
from treeproof.reports.case_sheet import count, summary
from treeproof.reports.cause import cause_text
from treeproof.reports.console import MAX_WIDTH, command, fitted, prose
from treeproof.reports.drawing import bracket, draw_request
from treeproof.reports.recovered import recovered_lines
from treeproof.reports.sanitized import sanitized_lines
from treeproof.reports.script_lines import script_lines
from treeproof.reports.text import shown
from treeproof.reports.visibility import legend, visibility_lines

MAX_LINES = 40
_TREE, _ROWS, _STEPS = 14, 6, 12
_SANITIZED = 3
"""Lines for the tree, for rows whose keys differ and for a script; the rest of the 40 is for words."""


@dataclass(frozen=True)
class Explained:
    """Everything that is known about one failure key (backend, identity, kind)."""

    backend: str
    failure: Failure
    case: VerifyCase | None
    """The case that the failure is about; None where its file cannot be read."""
    checked: Checked | None
    """The check that found it, in `case`."""
    checks: int
    """Checks of this backend that failed so."""
    replay: str
    """The command that replays it."""
    reduction: str = ""
    """How the case was made smaller, in words."""
    varies: str = ""
    """Aspects of the case that this failure does not need, with the values it was seen at."""
    diagnosed: Diagnosed | None = None
    """Its cause; None where it was not looked for or no evidence shows it."""
    sanitized: Sanitized | None = None
    """What compute-sanitizer said; None where it was not asked."""


def failure_block(what: Explained) -> list[Text]:
    """The block, without blank lines around it; the replay command is its last line."""
    failure = what.failure
    where = f"{failure.evidence}, stage {shown(failure.stage, 40)}"
    head = f"✗ {what.backend}  {failure.identity}: {shown(failure.kind, 80)}  ({where})"
    lines = [prose(f"{head}  in {count(what.checks, 'check')}", "bold red")]
    lines += [prose(f"  {part}", "bold") for part in _wrapped(failure.message, 4)]
    if failure.expected or failure.actual:
        lines += [prose(f"  {part}") for part in _wrapped(_expected_and_got(failure), 2)]
    if what.diagnosed is not None:
        lines += [prose(f"  {part}") for part in _wrapped(cause_text(what.diagnosed), 3)]
    elif failure.cause:
        lines += [prose(f"  {part}") for part in _wrapped(f"likely cause: {failure.cause}", 2)]
    for said in () if what.sanitized is None else sanitized_lines(what.sanitized)[:_SANITIZED]:
        lines += [prose(f"  {part}") for part in _wrapped(said, 4)]
    if what.case is not None:
        lines += _case_part(what, what.case)
    margin = what.checked.margin if what.checked else None
    if failure.key == ("output", "outside-bound") and margin is not None:
        lines.append(Text(f"  worst error {margin:.3g} times the bound"))
    lines = [part for line in lines for part in fitted(line, MAX_WIDTH)]
    if len(lines) >= MAX_LINES:
        lines = [*lines[: MAX_LINES - 2], Text("  …")]
    return [*lines, command(what.replay)]


def _wrapped(text: str, most: int) -> list[str]:
    short = re.sub(r"(?:\d+→){8,}\d+", _ends, shown(text))
    return textwrap.wrap(short, 96, max_lines=most, placeholder=" …", break_on_hyphens=False)


def _ends(path: re.Match[str]) -> str:
    """A long path by its first and last nodes."""
    nodes = path[0].split("→")
    return "→".join([*nodes[:3], "…", *nodes[-2:]])


def _expected_and_got(failure: Failure) -> str:
    return f"expected {failure.expected or 'nothing'}, got {failure.actual or 'nothing'}"


def _case_part(what: Explained, case: VerifyCase) -> list[Text]:
    b = what.failure.request or 0
    request = case.requests[b]
    size = f"  case of {summary(case)}"
    lines = [prose(f"{size}; {what.reduction}" if what.reduction else size)]
    if what.varies:
        lines += [prose(f"  {part}") for part in _wrapped(f"varies freely: {what.varies}", 3)]
    lines.append(Text(""))
    if case.script:
        lines += [Text(f"  {line}") for line in script_lines(case, _STEPS)]
        lines.append(Text(""))
    if len(case.requests) > 1:
        lines.append(Text(f"  request {b}", style="dim"))
    if case.script:  # its columns move from round to round
        drawn = _tree(replace(what.failure, column=None), request, None)
        return [*lines, *(Text(f"  {line}") for line in drawn)]
    lines += [Text(f"  {line}") for line in _tree(what.failure, request, case.shape.window)]
    failures = what.checked.failures if what.checked else (what.failure,)
    lines += _keys(failures, b, what.failure.row, request, case.shape.window)
    if what.checked and what.checked.recovered:
        found = recovered_lines(request, b, what.checked.recovered)
        lines += [Text(""), *(Text(f"  {line}") for line in found)]
    return lines


def _tree(failure: Failure, request: Request, window: int | None) -> list[str]:
    """The drawn tree, with the failing row marked, and the edge where it is about a key."""
    row = failure.row
    if row is None or row >= request.num_nodes:
        return [line.text for line in draw_request(request, max_lines=_TREE)]
    other = None if failure.column is None else failure.column - request.prefix_len
    if other is None or not 0 <= other < request.num_nodes:
        lines = draw_request(request, (row,), _TREE)
        return bracket(lines, row, row, ("", "here"))
    sign = _sign(failure, expected_reads(request, window)[row].has(failure.column or 0))
    due, does = _EDGE_WORDS[sign]
    lines = draw_request(request, (row, other), _TREE)
    return bracket(lines, row, other, (due, f"row {row} {does}"))


_EDGE_WORDS = {
    "+": ("must not be read", "reads it"),
    "-": ("must be read", "does not read it"),
    "2": ("must be read once", "reads it twice"),
    "~": ("must be read by every head", "reads it in some heads"),
}


def _sign(failure: Failure, due: bool) -> str:
    """The sign of `visibility.SIGNS` for a key that is wrongly read."""
    if not due:
        return "+"
    return {"reads-twice": "2", "heads-differ": "~", "wrong-weight": "~"}.get(failure.kind, "-")


def wrongly_read(
    failures: Iterable[Failure], b: int, request: Request, window: int | None
) -> Iterator[tuple[int, int, str, Failure]]:
    """Row and logical column of each wrongly read key of request `b`, its sign, and who says so."""
    reads = expected_reads(request, window)
    for failure in failures:
        row, column = failure.row, failure.column
        if failure.identity != "visibility" or failure.request != b:
            continue
        if row is None or column is None or row >= request.num_nodes:
            continue
        yield row, column, _sign(failure, reads[row].has(column)), failure


def _keys(
    failures: Sequence[Failure], b: int, first: int | None, request: Request, window: int | None
) -> list[Text]:
    """The rows whose keys differ from what they must read, row `first` first; may be none."""
    marks = {(row, c): sign for row, c, sign, _ in wrongly_read(failures, b, request, window)}
    rows = sorted({row for row, _ in marks}, key=lambda row: (row != first, row))
    if not rows:
        return []
    lines = visibility_lines(request, window, rows[:_ROWS], marks)
    more = [f"… {count(len(rows) - _ROWS, 'more row')} that differ"] if rows[_ROWS:] else []
    return [
        Text(""),
        prose(f"  {legend(marks)}", "dim"),
        *(Text(f"  {line}") for line in (*lines, *more)),
    ]
