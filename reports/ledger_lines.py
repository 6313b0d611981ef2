"""The ledger after a run: what was tolerated and why, for how long still, and what must go."""

from __future__ import annotations

import re

from rich.text import Text

from treeproof.engine.ledger_state import EntryState
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import count
from treeproof.reports.console import prose


def ledger_lines(run: Run) -> list[Text]:
    """One line an entry; nothing where the run had no ledger."""
    return [prose(f"  {entry_words(state)}", _STYLES.get(state.state, "")) for state in run.ledger]


_STYLES = {"unexpected-pass": "bold red", "expired": "yellow"}


def entry_words(state: EntryState) -> str:
    """An entry, what became of it, and its reason."""
    entry = state.entry
    cause = f" by {entry.cause}" if entry.cause else ""
    head = f"{entry.number}. {entry.backend}  {entry.identity}: {entry.kind}{cause}: "
    left = f"{count(state.days_left, 'day')} left"
    if state.state == "expired":
        return f"{head}expired on {entry.expires}, tolerates nothing any more: {entry.reason}"
    if state.state == "quarantined":
        return f"{head}{count(state.checks, 'case')} not launched: {entry.reason} ({left})"
    if state.state == "tolerated":
        return f"{head}tolerated in {count(state.checks, 'check')}: {entry.reason} ({left})"
    if state.state == "other-release":
        return f"{head}{entry.elsewhere}, so it tolerates nothing here: {entry.reason} ({left})"
    if state.state == "not-reached":
        return f"{head}no check was in its scope: {entry.reason} ({left})"
    return f"{head}{pass_words(state)}: {entry.reason}"


def pass_words(state: EntryState) -> str:
    """That an entry is over, and what to do."""
    among = count(state.reached, "check")
    return f"unexpected pass, {among} in its scope and none failed so; if it is mended, drop it"


def linked(words: str) -> list[tuple[str, str]]:
    """Words in pieces, each with where it leads: http and https addresses, and else nothing."""
    pieces, end = [], 0
    for found in _ADDRESS.finditer(words):
        pieces += [(words[end : found.start()], ""), (found[0], found[0])]
        end = found.end()
    return [piece for piece in (*pieces, (words[end:], "")) if piece[0]]


_ADDRESS = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]]")
