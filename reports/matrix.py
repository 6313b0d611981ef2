"""Backend by column: how many cases passed, failed, or were not judged, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rich.text import Text

from treeproof.contract.failure import COLUMNS, IDENTITIES, Cell, Identity
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import count
from treeproof.reports.console import prose

_JUDGED = ("fail", "known", "tie", "pass")
_NAME = 28
"""Longest backend name shown whole; with it the matrix still fits into 100 columns."""


@dataclass
class Tally:
    """One backend, one column: cases by their worst status, however many evidences were judged."""

    cases: Counter[str] = field(default_factory=Counter)
    gaps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cases by what of the column was not judged, empty for all of it, and why."""
    measured: bool = False
    """At least one verdict rests on what the kernel did, not only on tables."""

    def add(
        self, verdicts: Iterable[Cell], column: Identity, only_known: Collection[str], checks: int
    ) -> None:
        """So many checks with these verdicts. `only_known`: columns that fail only as the ledger
        says."""
        cells = [cell for cell in verdicts if cell.identity == column]
        statuses: set[str] = {cell.status for cell in cells}
        if column in only_known and "fail" in statuses:
            statuses = statuses - {"fail"} | {"known"}
        judged = next((status for status in _JUDGED if status in statuses), "")
        self.cases[judged or "not judged"] += checks * bool(cells)
        self.measured |= any(c.evidence == "measured" and c.status in _JUDGED for c in cells)
        gaps = {
            (
                ", ".join(filter(None, (cell.evidence, cell.stage))) if judged else "",
                f"{cell.status.replace('-', ' ')} ({cell.reason})",
            )
            for cell in cells
            if cell.status not in _JUDGED and cell.reason
        }
        for gap in gaps:
            self.gaps[gap] += checks


def tallies(run: Run) -> dict[str, dict[Identity, Tally]]:
    """Backend, then column, in the order they were asked for."""
    found = {name: {column: Tally() for column in COLUMNS} for name in run.backends}
    # Most checks are alike, and there may be a hundred thousand.
    alike = Counter((check.backend, check.cells, run.only_known(check)) for check in run.checks)
    for (backend, cells, only_known), checks in alike.items():
        for column in COLUMNS:
            found[backend][column].add(cells, column, only_known, checks)
    return found


def matrix_lines(run: Run) -> list[Text]:
    """The matrix, then how far each backend was exercised and how close it came to the bound."""
    found = tallies(run)
    room = max(map(len, map(shortened, run.backends)), default=0) + 2
    cells = {name: [_cell(found[name][c]) for c in COLUMNS] for name in run.backends}
    widths = [
        max([len(column), *(len(row[i].plain) for row in cells.values())])
        for i, column in enumerate(COLUMNS)
    ]
    head = [Text(column_name(column)) for column in COLUMNS]
    lines = [_row("", room, head, widths)]
    for name, row in cells.items():
        if name in run.unavailable:
            lines.append(Text(f"{shortened(name):<{room}}cannot run here", style="yellow"))
        else:
            lines.append(_row(name, room, row, widths))
    if any(cell.plain.startswith("(") for row in cells.values() for cell in row):
        lines.append(Text(f"{'':{room}}( ) tables only: no reading was measured", style="dim"))
    return [*lines, Text(""), *_exercise(run, room)]


def column_name(column: str) -> str:
    return "KV" if column == "kv" else column


def _row(name: str, room: int, cells: Iterable[Text], widths: list[int]) -> Text:
    line = Text(f"{shortened(name):<{room}}")
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        bar = " │ " if i == len(IDENTITIES) else "  " if i else ""
        line.append(bar + " " * (width - len(cell.plain)))
        line.append_text(cell)
    return line


def _cell(tally: Tally) -> Text:
    fails, known, ties, passes = (tally.cases[status] for status in _JUDGED)
    if fails:
        text, style = f"✗ {fails}", "bold red"
    elif known:
        text, style = f"known {known}", "yellow"
    elif ties:
        text, style = f"~ {ties}", "yellow"
    elif passes:
        text, style = f"✓ {passes}", "green"
    else:
        return Text("·", style="dim")
    return Text(text if tally.measured else f"({text})", style=style)


def shortened(name: str) -> str:
    """A name of any length as at most `_NAME` characters."""
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[1 - _NAME // 2 :]}"


def _exercise(run: Run, room: int) -> list[Text]:
    lines = [Text(f"{'':{room}}{'exercised':<12}{'checks':>7}{'margin':>10}{'rest':>10}")]
    for name in run.backends:
        if name in run.unavailable:
            continue
        exercised = len(run.exercised[name])
        line = Text(f"{shortened(name):<{room}}")
        style = "" if exercised == len(IDENTITIES) else "yellow"
        line.append(f"{f'{exercised} of {len(IDENTITIES)}':<12}", style=style)
        line.append(f"{run.completed_checks(name):>7,}")
        line.append(
            f"{_margin(run.margins.get(name)):>10}{_margin(run.margins_rest.get(name)):>10}"
        )
        lines.append(line)
    note = "margin: worst error over its bound, 1 is the limit; rest: without the output's rounding"
    return [*lines, prose(note, "dim")]


def _margin(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def reason_lines(run: Run, most: int = 10) -> list[Text]:
    """What was not judged and why, backends and columns with the same reason together."""
    columns: dict[tuple[str, int, str], list[str]] = {}
    for name, by_column in tallies(run).items():
        for column, tally in by_column.items():
            for (part, reason), cases in tally.gaps.items():
                shown = f"{column_name(column)} ({part})" if part else column_name(column)
                columns.setdefault((reason, cases, name), []).append(shown)
    backends: dict[tuple[str, int, str], list[str]] = {}
    for (reason, cases, name), shown_columns in columns.items():
        everything = len(shown_columns) == len(COLUMNS)
        what = "all columns" if everything else ", ".join(shown_columns)
        backends.setdefault((reason, cases, what), []).append(shortened(name))
    said = sorted(backends.items(), key=lambda item: -item[0][1])
    lines = [
        prose(f"  {', '.join(names)}: {what} in {count(cases, 'case')} {reason}")
        for (reason, cases, what), names in said[:most]
    ]
    return lines + ([Text(f"  … {len(said) - most} more reasons")] if said[most:] else [])
