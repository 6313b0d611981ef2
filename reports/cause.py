"""A cause in words, and failures that share one."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.event import Diagnosed
from treeproof.engine.failure_group import FailureGroup
from treeproof.reports.case_sheet import count

UNKNOWN = "unknown"
_NAMED = 3
"""Causes ruled out that are named; of the others, how many."""


def cause_text(found: Diagnosed) -> str:
    """One sentence: the likely cause and what it says, or that it is unknown and what is ruled out."""
    if found.cause == UNKNOWN:
        named = ", ".join(found.ruled_out[:_NAMED])
        more = len(found.ruled_out) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        return f"cause unknown: ruled out {named}{rest}" if named else "cause unknown"
    text = f"likely cause: {found.cause}"
    if found.says:
        text += f": {found.says}"
    if found.detail:
        text += f" ({found.detail})"
    others = [name for name in found.candidates if name != found.cause]
    return f"{text}; or {' or '.join(others)}, which no case told apart" if others else text


def shared_causes(groups: Sequence[FailureGroup]) -> list[str]:
    """A line for each cause that several failures of one backend share."""
    alike: dict[tuple[str, str, str], list[FailureGroup]] = {}
    for group in groups:
        found = group.diagnosed
        if found is not None and found.cause != UNKNOWN:
            alike.setdefault((group.backend, found.cause, found.detail), []).append(group)
    return [
        f"{count(len(sharing), 'failure')}, one cause: {backend} {cause}"
        f"{f' ({detail})' if detail else ''}: "
        + ", ".join(f"{group.identity} {group.kind}" for group in sharing)
        for (backend, cause, detail), sharing in alike.items()
        if len(sharing) > 1
    ]
