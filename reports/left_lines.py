"""What a run did not come to, in words: a line for backends that share it."""

from __future__ import annotations

from treeproof.engine.summary import Run
from treeproof.engine.unchecked import Unchecked
from treeproof.reports.case_sheet import count

NAMED = 12
"""Event classes that a line names; of more, how many."""


def left_words(left: Unchecked, most: int = NAMED) -> str:
    """`41 cases in 5 parts; nothing of rows:512 prefix:long`."""
    text = f"{count(left.cases, 'case')} in {count(len(left.units), 'part')}"
    if left.undrawn:
        text += f", {left.undrawn} of them not drawn"
    if not left.classes:
        return text
    more = f" … {len(left.classes) - most} more" if left.classes[most:] else ""
    return f"{text}; nothing of {' '.join(left.classes[:most])}{more}"


def left_lines(run: Run, most: int = NAMED) -> list[str]:
    """Empty where the run came to all that it was asked for."""
    return [f"{', '.join(names)}: {left_words(left, most)}" for left, names in _alike(run)]


def left_parts(run: Run) -> list[str]:
    """The same with the name of every part."""
    return [
        f"{', '.join(names)}: {left_words(left, len(left.classes))}: {' '.join(left.units)}"
        for left, names in _alike(run)
    ]


def _alike(run: Run) -> list[tuple[Unchecked, list[str]]]:
    found: dict[Unchecked, list[str]] = {}
    for backend, left in run.left.items():
        found.setdefault(left, []).append(backend)
    return list(found.items())
