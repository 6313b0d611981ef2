"""Writing: nothing wraps, commands stay whole, other encodings get ASCII, no control characters."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from treeproof.reports.console import command, open_console, prose, write


def written(*lines: Text | str, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    write(open_console(stream), lines)
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(encoding)


def test_long_lines_are_cut_and_commands_are_not() -> None:
    assert written("x" * 150) == "x" * 99 + "…\n"
    assert written(command("y" * 150)) == "y" * 150 + "\n"


def test_a_pipe_gets_no_colour() -> None:
    assert written(Text("red", style="bold red")) == "red\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_without_unicode_gets_ascii(encoding: str) -> None:
    assert written("├─ row 1 ◄─┐ path 0→1 …", encoding=encoding) == "|- row 1 <-+ path 0->1 .\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    write(open_console(stream), [Text("red", style="red")])
    assert ("\x1b[31m" in stream.getvalue()) == coloured


def test_a_narrow_terminal_folds_prose_under_its_label_and_cuts_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    write(open_console(stream), [prose("time     one two three"), Text("├─ row 1 token 123456")])
    assert stream.getvalue() == "time     one two\n         three\n├─ row 1 token 1234…\n"


def test_words_of_a_backend_do_not_drive_the_terminal() -> None:
    assert written("a\x1b[2Jb\nc\x07\udc80") == "a [2Jb c \n"


def test_square_brackets_are_text_and_no_markup() -> None:
    assert written("parents [-1, 0, 0] [red]x[/red] :smile:") == (
        "parents [-1, 0, 0] [red]x[/red] :smile:\n"
    )
