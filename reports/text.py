"""Strings that a backend may have had a hand in, made fit to be shown anywhere."""

from __future__ import annotations

import re
import unicodedata

MAX_TEXT = 2_000
"""Characters of one string that a report shows."""

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_COMMANDS = (
    (re.compile(r"(?<!\S)::(?=\S)"), ": :"),
    (re.compile(r"##(?=\w*\[)"), "# #"),
)
"""What CI services take for a command to them in a job's log: `::error`, `##[error]`, `##vso[`."""


def printable(text: str) -> str:
    """One line without control characters and commands: a backend's words must drive neither the
    terminal nor the service that reads a job's log."""
    line = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in text)
    for command, harmless in _COMMANDS:
        line = command.sub(harmless, line)
    return line


def shown(text: str, most: int = MAX_TEXT) -> str:
    """The same, cut where it is too long."""
    line = printable(text[:most])
    return line if len(text) <= most else f"{line}… ({len(text):,} characters)"
