"""The guide for a kernel of one's own: its files, edits and commands, in order, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "check-your-own-kernel.md"
TEXT = GUIDE.read_text("utf-8")
MENDED = "## 5. "
"""Heading behind which a kernel has been found wrong, mended and seen to be right."""


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment above it: `file: NAME`, `edit: NAME`, `exit: N`, `not run: …`."""

    note: str
    language: str
    body: str


def blocks(text: str) -> Iterator[Block]:
    for note, language, body in re.findall(
        r"^(?:<!-- ([^\n]+) -->\n)?```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        yield Block(note, language, body)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new repository, and beside it the two commands as they would be on the path."""
    for program in ("treeproof", "pytest"):
        script = tmp_path / "bin" / program
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {program} "$@"\n')
        script.chmod(0o755)
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    return folder


def follow(text: str, folder: Path) -> None:
    """Do what the guide says, and hold what is printed against what it shows."""
    printed = ""
    for block in blocks(text):
        kind, _, value = block.note.partition(": ")
        match block.language, kind:
            case "bash", "not run":
                pass
            case "bash", _:
                printed = run(block.body, folder, int(value or 0))
            case "text", _:
                require_shown(block.body, printed)
            case "python", "file":
                (folder / value).write_text(block.body, "utf-8")
            case "diff", "edit":
                edit(folder / value, block.body)
            case _:
                raise AssertionError(f"what is to be done with this block? {block}")


def run(command: str, folder: Path, code: int) -> str:
    path = os.pathsep.join([str(folder.parent / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def edit(file: Path, diff: str) -> None:
    """Lines with `-`, together once in the file, become those with `+`."""
    old, new = (
        "".join(f"{line[1:]}\n" for line in diff.splitlines() if line.startswith(sign))
        for sign in "-+"
    )
    text = file.read_text("utf-8")
    assert text.count(old) == 1, f"{file.name} holds {text.count(old)} times:\n{old}"
    file.write_text(text.replace(old, new), "utf-8")


def require_shown(shown: str, printed: str) -> None:
    """Every stretch of lines is printed, one stretch after another; `…` stands for others."""
    rest = printed
    for stretch in shown.split("…\n"):
        assert stretch in rest, f"not printed:\n{stretch}\nbut:\n{printed}"
        rest = rest.split(stretch, 1)[1]


def test_the_guide_leads_from_nothing_to_a_kernel_that_is_mended(folder: Path) -> None:
    before, heading, _ = TEXT.partition(MENDED)
    assert heading
    follow(before, folder)


@pytest.mark.long
def test_the_guide_holds_to_its_end(folder: Path) -> None:
    follow(TEXT, folder)


def test_only_what_installs_or_needs_a_gpu_is_not_run() -> None:
    reasons = [block.note for block in blocks(TEXT) if block.note.startswith("not run")]
    assert reasons == ["not run: it installs", "not run: it needs a GPU"]


def test_a_guide_that_shows_what_is_not_printed_would_be_noticed(folder: Path) -> None:
    follow("```bash\necho one\necho two\necho three\n```\n```text\none\n…\nthree\n```\n", folder)
    for wrong in ("four", "three\n…\none"):
        with pytest.raises(AssertionError, match="not printed"):
            follow(f"```bash\necho one\necho three\n```\n```text\n{wrong}\n```\n", folder)


def test_the_places_that_the_guide_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        text = (GUIDE.parent / file).read_text("utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
    assert "(docs/check-your-own-kernel.md)" in (ROOT / "README.md").read_text("utf-8")
