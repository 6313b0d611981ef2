"""A cause in words, and failures that share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class SharedCause:
    """Several failures of one backend that one statement explains, in one way."""

    backend: str
    name: str
    """With the way in which it holds, where that is told."""
    says: str
    groups: tuple[FailureGroup, ...]


def shared(groups: Sequence[FailureGroup]) -> list[SharedCause]:
    """Each cause that several failures of one backend share, in the order of the failures."""
    alike: dict[tuple[str, str, str], list[FailureGroup]] = {}
    for group in groups:
        found = group.diagnosed
        if found is not None and found.cause != UNKNOWN:
            alike.setdefault((group.backend, found.cause, found.detail), []).append(group)
    return [
        SharedCause(
            backend=backend,
            name=f"{cause} ({detail})" if detail else cause,
            says=_says(sharing[0]),
            groups=tuple(sharing),
        )
        for (backend, cause, detail), sharing in alike.items()
        if len(sharing) > 1
    ]


def shared_causes(groups: Sequence[FailureGroup]) -> list[str]:
    """The same, a line each."""
    return [
        f"{count(len(one.groups), 'failure')}, one cause: {one.backend} {one.name}: "
        + ", ".join(f"{group.identity} {group.kind}" for group in one.groups)
        for one in shared(groups)
    ]


def _says(group: FailureGroup) -> str:
    return "" if group.diagnosed is None else group.diagnosed.says
