"""A comparison of two runs, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from treeproof.engine.failure_group import FailureGroup
from treeproof.reports.case_sheet import count
from treeproof.reports.comparison import Comparison
from treeproof.reports.console import prose

_KINDS = (
    ("new", "✗", "bold red", "new failure"),
    ("still", "✗", "red", "still failing"),
    ("fixed", "✓", "green", "fixed"),
    ("unseen", "?", "yellow", "failed before, and not judged now"),
)


def comparison_lines(found: Comparison) -> list[Text]:
    """New failures first; the last line says it in numbers."""
    lines = (
        [prose("not the same in both: " + ", ".join(found.differing))] if found.differing else []
    )
    lines += [prose(f"! {words}", "yellow") for words in found.incomplete]
    for name, mark, style, words in _KINDS:
        groups: Sequence[FailureGroup] = getattr(found, name)
        for group in groups:
            text = f"{mark} {words}: {group.backend}  {group.identity} {group.kind}"
            lines += [prose(text, style), prose(f"    {group.failure.message}")]
    for backend, before, after in found.margins:
        way = "wider" if after < before else "closer to the bound"
        lines.append(prose(f"  margin of {backend}: {before:.2g} → {after:.2g}, {way}"))
    numbers = f"{len(found.new)} new, {len(found.still)} still failing, {len(found.fixed)} fixed"
    unseen = f", {count(len(found.unseen), 'failure')} not judged now" if found.unseen else ""
    return [*lines, Text(f"{numbers}{unseen}", style="bold")]
