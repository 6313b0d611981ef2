"""Where reports are written: a terminal, a pipe, or a stream that cannot show Unicode."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from treeproof.reports.drawing import plain

MAX_WIDTH = 100
"""Reports are laid out for this many columns; a narrower terminal cuts them at its edge."""


def printable(text: str) -> str:
    """One line without control characters: a backend's words must not drive the terminal."""
    return "".join(
        " " if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") else char
        for char in text
    )


def open_console(stream: TextIO | None = None) -> Console:
    """A console that never wraps or marks up by itself; colours only on a terminal (NO_COLOR)."""
    return Console(
        file=stream or sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def write(console: Console, lines: Iterable[Text | str]) -> None:
    """Print lines, none wrapped. A line marked `no_wrap` (a command to copy) is never cut."""
    utf8 = console.encoding.lower().replace("-", "").startswith("utf")
    width = max(20, min(console.width, MAX_WIDTH)) if console.is_terminal else MAX_WIDTH
    for line in lines:
        text = Text(line) if isinstance(line, str) else line.copy()
        if not text.no_wrap:
            text.truncate(width, overflow="ellipsis")
        text.plain = printable(text.plain)
        if not utf8:
            text = Text(plain(text.plain))
        console.print(text, soft_wrap=True)


def command(words: str) -> Text:
    """A command to copy: printed whole, however long."""
    return Text(words, style="bold", no_wrap=True)
