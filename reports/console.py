"""Where reports are written: a terminal, a pipe, or a stream that cannot show Unicode."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from treeproof.reports.drawing import plain
from treeproof.reports.text import printable, shown

MAX_WIDTH = 100
"""Reports are laid out for this many columns; a narrower terminal cuts them at its edge."""


MAX_LINE = 4_000
"""Characters of one line, before it is folded."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would leave with exit code 1, which means `identities violated` here.
        raise BrokenPipeError


def open_console(stream: TextIO | None = None) -> Console:
    """A console that never wraps or marks up by itself; colours only on a terminal (NO_COLOR).

    Raises BrokenPipeError where the reader of a pipe has gone.
    """
    return _Console(
        file=stream or sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def write(console: Console, lines: Iterable[Text | str]) -> None:
    """Print lines. Pictures are cut at the edge, prose is folded, commands stay whole."""
    utf8 = console.encoding.lower().replace("-", "").startswith("utf")
    width = max(20, min(console.width, MAX_WIDTH)) if console.is_terminal else MAX_WIDTH
    for line in lines:
        whole = Text(line) if isinstance(line, str) else line.copy()
        whole.plain = printable(whole.plain) if whole.no_wrap else shown(whole.plain, MAX_LINE)
        for text in fitted(whole, width):
            text.plain = printable(text.plain)  # what is folded may begin anew with a command
            console.print(text if utf8 else Text(plain(text.plain)), soft_wrap=True)


def fitted(line: Text, width: int) -> list[Text]:
    """The line as it is printed on so many columns: in one piece, cut, or folded."""
    if line.no_wrap or line.cell_len <= width:
        return [line.copy()]
    if line.overflow != "fold":
        picture = line.copy()
        picture.truncate(width, overflow="ellipsis")
        return [picture]
    # What is folded goes on below the text after a label (`time     41 s; …`).
    label = re.match(r"\s*(\S+ {2,})?", line.plain)
    hang = (label.end() if label else 0) or 2
    parts = textwrap.wrap(line.plain, width, subsequent_indent=" " * hang, break_on_hyphens=False)
    return [Text(part, style=line.style, overflow="fold") for part in parts]


def prose(words: str, style: str = "") -> Text:
    """A sentence or a list: folded where it is too long."""
    return Text(words, style=style, overflow="fold")


def command(words: str) -> Text:
    """A command to copy: printed whole, however long."""
    return Text(words, style="bold", no_wrap=True)
