"""The confusion matrix of the diagnosis: what was planted, and what was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from treeproof.reports.case_sheet import count
from treeproof.reports.console import prose
from treeproof.scoring.result import Kill

UNKNOWN = "unknown"


def diagnosis_lines(title: str, kills: Sequence[Kill]) -> list[Text]:
    """A line a planted cause: how often it was told, and what was said instead; then the score.

    Causes that no hypothesis describes are right where the answer is `unknown`.
    """
    scored = [kill for kill in kills if kill.cause]
    by_cause: dict[str, list[Kill]] = {}
    for kill in scored:
        by_cause.setdefault(kill.true_cause, []).append(kill)
    room = max(map(len, by_cause), default=0) + 2
    lines = [prose(f"causes of {title}", "bold")]
    for cause, found in sorted(by_cause.items(), key=lambda item: (item[0] == UNKNOWN, item[0])):
        told = sum(kill.told for kill in found)
        said = Counter(kill.cause for kill in found if not kill.told)
        instead = "".join(f"  → {name} {times}" for name, times in said.most_common())
        style = "" if told == len(found) else "yellow"
        lines.append(Text(f"  {cause:<{room}}{told:>3} of {len(found):<3}{instead}", style=style))
    return [*lines, *_score(scored), *map(_wrong, (kill for kill in scored if not kill.told))]


def _score(scored: Sequence[Kill]) -> list[Text]:
    lines = []
    named = [kill for kill in scored if kill.true_cause != UNKNOWN]
    if named:
        right = sum(kill.told for kill in named)
        misled = sum(not kill.told and kill.cause != UNKNOWN for kill in named)
        lines.append(
            prose(
                f"named rightly: {right} of {len(named)} ({100 * right / len(named):.1f} %); "
                f"wrongly: {misled}; not at all: {len(named) - right - misled}"
            )
        )
    nameless = [kill for kill in scored if kill.true_cause == UNKNOWN]
    if nameless:
        honest = sum(kill.told for kill in nameless)
        lines.append(
            prose(f"no hypothesis describes {count(len(nameless), 'pair')}: unknown in {honest}")
        )
    return lines


def _wrong(kill: Kill) -> Text:
    others = [name for name in kill.candidates if name != kill.cause]
    beside = f" (also possible: {', '.join(others)})" if others else ""
    said = f"{kill.true_cause} was planted, {kill.cause}{beside} was said"
    return prose(f"  {kill.fault} in {kill.backend}: {said}")
