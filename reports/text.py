"""Strings that a backend may have had a hand in, made fit to be shown anywhere."""

from __future__ import annotations

from treeproof.reports.console import printable

MAX_TEXT = 2_000
"""Characters of one string that a report shows."""


def shown(text: str, most: int = MAX_TEXT) -> str:
    """One line without control and bidirectional characters, cut where it is too long."""
    cut = printable(text[: most + 1])
    return cut if len(text) <= most else f"{cut[:most]}… ({len(text):,} characters)"
