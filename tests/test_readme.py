"""What the documents say against what is there."""

import re
import tomllib
from pathlib import Path

import pytest

from treeproof.cli import cli
from treeproof.commands.exit_codes import EXIT_CODES
from treeproof.contract.failure import IDENTITIES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def section(heading):
    """The text under a heading of the README."""
    return README.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def first_cells(heading):
    """The first cell of each row of the table under a heading, the head left out."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip() for row in rows[2:]]


@pytest.mark.parametrize("name", ["main", "tests"])
def test_the_first_screen_shows_the_commands_that_ci_runs(name):
    first_screen = README.split("\n## ")[0]
    (command,) = re.findall(rf"<!-- command: {name} -->\n```bash\n(.+)\n```\n", first_screen)
    assert command.startswith(
        "python3 -m venv .venv && .venv/bin/pip install -c ci/constraints.txt"
    )
    assert f"\nrun_readme_command {name}\n" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_readme_names_every_command():
    named = section("Commands").split(";")[0]
    assert set(re.findall(r"`([a-z-]+)[^`]*`", named)) == set(cli.commands)


def test_the_readme_lists_the_exit_codes_that_the_help_lists():
    assert first_cells("Commands") == re.findall(r"^ +(\d+)  ", EXIT_CODES, re.MULTILINE)


def test_the_readme_explains_the_five_identities():
    assert [cell.lower() for cell in first_cells("The five identities")] == list(IDENTITIES)


def test_the_readme_names_every_extra():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = README.split("Extras for what not everybody has:")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(pyproject["project"]["optional-dependencies"])


@pytest.mark.parametrize("document", sorted(path.name for path in ROOT.glob("*.md")))
def test_files_and_folders_that_a_document_names_are_there(document):
    text = (ROOT / document).read_text("utf-8")
    places = r"(?:harness|oracles|backends|properties|reports|examples|tests|ci|\.ci)/[\w./]*"
    linked = re.findall(r"\]\(([^):]+)\)", text)
    for place in (*linked, *re.findall(rf"(?<![\w./-]){places}", text)):
        assert (ROOT / place.rstrip(".")).exists(), f"{document} names {place}"
